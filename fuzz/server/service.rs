//! A server without models, with a plugin that says hello at `/hello`, and a store.

#![allow(dead_code)]

use corral_runtime::Limits;
use corral_server::deployments::{DeploymentName, Deployments, Digest, Store, StoreLimits};
use corral_server::{
    Access, HttpLimits, RequestPolicy, Server, ServerOptions, ServerSockets, Services,
};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

#[path = "../../host/runtime/tests/support/mod.rs"]
mod plugins;

/// Limit of a wait for the server.
pub const TIMEOUT: Duration = Duration::from_secs(15);

pub struct Service {
    pub tokio: Runtime,
    pub server: Server,
    /// The digest of a component in the store.
    pub digest: String,
    component: Vec<u8>,
    deployments: Deployments,
    dir: PathBuf,
}

pub static SERVICE: LazyLock<Service> = LazyLock::new(Service::start);

impl Service {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory").keep();
        let tokio = Builder::new_current_thread().enable_all().build();
        let tokio = tokio.expect("a runtime");
        let component = plugins::http_2("(call $respond) (call $say) (call $finish)");
        let (server, deployments) = tokio.block_on(serve(&dir, component.clone()));
        Service {
            tokio,
            server,
            digest: Digest::of(&component).to_string(),
            component,
            deployments,
            dir,
        }
    }

    /// Stores the component. The store drops it when no revision references it any more.
    pub fn store_component(&self) {
        let digest = Digest::of(&self.component);
        let store = self.deployments.store().expect("a store");
        if store.component(digest).is_none() {
            store.put(digest, &self.component).expect("there is room");
        }
    }

    /// The names of the stored deployments.
    pub fn deployment_names(&self) -> Vec<DeploymentName> {
        let store = self.deployments.store().expect("a store");
        store.list().into_keys().collect()
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.dir.join("admin")
    }
}

async fn serve(dir: &Path, component: Vec<u8>) -> (Server, Deployments) {
    let store = Store::open(&dir.join("store"), StoreLimits::default()).expect("a store");
    let runtime = plugins::runtime(8);
    let deployments = Deployments::new(
        runtime.clone(),
        Some(store),
        Limits::default(),
        Access::Open,
    );
    let hello = plugins::load(&runtime, component, Limits::default()).await;
    let route = "/hello".parse().expect("a route");
    let added = deployments.add_static(route, hello, RequestPolicy::default());
    added.expect("a free route");

    let admin = format!("unix:{}", dir.join("admin").display());
    let sockets = ServerSockets::bind("127.0.0.1:0", &admin)
        .await
        .expect("free addresses");
    let mut limits = HttpLimits::default();
    limits.discard_timeout = Duration::from_millis(100);
    let server = Server::start(sockets, ServerOptions::from(limits)).expect("addresses");
    server.serve(Services {
        models: corral_engine::ModelPool::loaded(Vec::new()),
        runtime,
        deployments: deployments.clone(),
    });
    (server, deployments)
}
