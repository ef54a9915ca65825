//! Why a component could not be loaded as a plugin. Each text says what was found, what was expected, and
//! what to do.

use crate::interfaces::{
    HTTP_3, LINKED_INTERFACES, ROLES, compatible, manifest_field, offered_packages,
};
use crate::runtime_config::MAX_MIDDLEWARE;
use crate::truncate;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Why a plugin could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file cannot be read.
    #[error("cannot read the plugin {path}: {cause}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The component is too large.
    #[error(
        "the plugin {plugin} has {bytes} bytes, but this host accepts {limit}; strip its debug information (wasm-tools strip) or raise the limit"
    )]
    TooLarge {
        /// The plugin.
        plugin: String,
        /// Its size.
        bytes: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// The plugin and its linked components together are too large.
    #[error(
        "the plugin {plugin} and its linked components together have more than the {limit} bytes that this host accepts; strip their debug information (wasm-tools strip), link fewer, or raise the limit"
    )]
    TooLargeTogether {
        /// The plugin.
        plugin: String,
        /// Bytes allowed for all of them.
        limit: usize,
    },
    /// The bytes are not WebAssembly.
    #[error(
        "the plugin {plugin} is not a WebAssembly component: it {found}; give the .wasm file that the component's build made"
    )]
    NotWasm {
        /// The plugin.
        plugin: String,
        /// What the bytes are, as a predicate.
        found: &'static str,
    },
    /// The bytes are a core module.
    #[error(
        "the plugin {plugin} is a core WebAssembly module, not a component; build it for wasm32-wasip2, or wrap it with `wasm-tools component new {plugin}.wasm --adapt wasi_snapshot_preview1.reactor.wasm -o plugin.wasm`"
    )]
    CoreModule {
        /// The plugin.
        plugin: String,
    },
    /// The component is invalid or exceeds a limit of wasmtime.
    #[error("the plugin {plugin} cannot be compiled: {cause}")]
    Compile {
        /// The plugin.
        plugin: String,
        /// What is wrong.
        cause: String,
    },
    /// The compilation exceeded a limit, crashed, or could not be started.
    #[error(
        "the plugin {plugin} is not compiled: {cause}{}",
        if cause.is_final() { "; split its large functions, or make it smaller" } else { "" }
    )]
    CompileStopped {
        /// The plugin.
        plugin: String,
        /// What happened.
        cause: corral_isolation::ChildError,
    },
    /// The component cannot be initialized.
    #[error("the plugin {plugin} cannot be initialized: {cause}")]
    Initialize {
        /// The plugin.
        plugin: String,
        /// What is wrong.
        cause: String,
    },
    /// The initialization exceeded a limit, crashed, or could not be started.
    #[error(
        "the plugin {plugin} is not initialized: {cause}{}",
        if cause.is_final() { "; do less in its initialization, or deploy it without `initialize`" } else { "" }
    )]
    InitializeStopped {
        /// The plugin.
        plugin: String,
        /// What happened.
        cause: corral_isolation::ChildError,
    },
    /// The component imports interfaces that this host lacks.
    #[error(
        "the plugin {plugin} imports what this host does not offer: {}. It offers: {}",
        truncate::list(unknown),
        offered_packages()
    )]
    Imports {
        /// The plugin.
        plugin: String,
        /// The unknown imports.
        unknown: Vec<String>,
    },
    /// An import or export has another type than this host's interface.
    #[error(
        "the plugin {plugin} does not fit this host's interfaces: {cause}; rebuild it against the versions that this host offers: {}",
        offered_packages()
    )]
    Mismatch {
        /// The plugin.
        plugin: String,
        /// Wasmtime's error.
        cause: String,
    },
    /// The component exports nothing that can be called.
    #[error(
        "the plugin {plugin} exports nothing that Corral can call; export one of {}, or, to be linked, one of {}",
        ROLES.join(", "),
        LINKED_INTERFACES.join(", ")
    )]
    NoRole {
        /// The plugin.
        plugin: String,
    },
    /// The component can only be linked to another plugin.
    #[error(
        "the plugin {plugin} exports {interface}, so it can only be linked to a handler; deploy a handler, and name this component in its corral.toml: [linked] {} = \"FILE.wasm\"",
        manifest_field(interface)
    )]
    OnlyLinkable {
        /// The plugin.
        plugin: String,
        /// Its export.
        interface: &'static str,
    },
    /// The plugin imports an interface, and not exactly one linked component exports it.
    #[error(
        "the plugin {plugin} imports {interface}, which exactly one linked component must export, but {linked} of them do; link one: [linked] {} = \"FILE.wasm\" in corral.toml",
        manifest_field(interface)
    )]
    NotLinked {
        /// The plugin.
        plugin: String,
        /// Its import.
        interface: &'static str,
        /// Number of linked components that export the interface.
        linked: usize,
    },
    /// The plugin has a linked template but does not import one.
    #[error(
        "the plugin {plugin} is linked with a template, but does not import {interface}; remove the link, or build the plugin with that import"
    )]
    NotImported {
        /// The plugin.
        plugin: String,
        /// The missing import.
        interface: &'static str,
    },
    /// The plugin has middleware, but no handler to which it can pass requests.
    #[error(
        "the plugin {plugin} exports no {HTTP_3}, to which its middleware passes requests; it exports {}; build the handler for WASI 0.3, or deploy it without middleware",
        truncate::list(exports)
    )]
    NoHandlerForMiddleware {
        /// The plugin.
        plugin: String,
        /// Its exports that can be called.
        exports: Vec<String>,
    },
    /// A component is linked as middleware, but passes no request on.
    #[error(
        "the plugin {component} does not import {HTTP_3}, so it passes no request on; build it for the world 'middleware', or deploy it as the handler"
    )]
    NotMiddleware {
        /// The linked component.
        component: String,
    },
    /// The plugin is middleware, and nothing answers its import.
    #[error(
        "the plugin {plugin} is middleware: it passes requests to another component, through its import {HTTP_3}; deploy a handler, and name this component in its corral.toml: [linked] middleware = [\"FILE.wasm\"]"
    )]
    OnlyMiddleware {
        /// The plugin.
        plugin: String,
    },
    /// The plugin has more middleware than a chain may have.
    #[error(
        "the plugin {plugin} is linked with {count} components as middleware; at most {MAX_MIDDLEWARE} are allowed"
    )]
    TooMuchMiddleware {
        /// The plugin.
        plugin: String,
        /// Number of components.
        count: usize,
    },
    /// A linked component lacks the export for which it is linked.
    #[error(
        "the plugin {component} exports no {interface}, for which it is linked; it exports {}",
        if exports.is_empty() { "nothing".to_owned() } else { truncate::list(exports) }
    )]
    LinkedExportMissing {
        /// The linked component.
        component: String,
        /// The missing export.
        interface: &'static str,
        /// Its exports.
        exports: Vec<String>,
    },
    /// A linked component imports interfaces that it has no grant for.
    #[error(
        "the plugin {component} imports what a linked component is not given: {}; build it without{}",
        truncate::list(refused),
        if *may_inherit { ", or, if it may use the deployment's models and see its environment, link it with inherit = true" } else { "" }
    )]
    LinkedImports {
        /// The linked component.
        component: String,
        /// The refused imports.
        refused: Vec<String>,
        /// Whether the manifest may grant them.
        may_inherit: bool,
    },
    /// The plugin and its linked components cannot be composed.
    #[error(
        "the plugin {plugin} cannot be composed with its linked components: {cause}{}",
        if *mismatch { "; build both against one version of corral:plugin, or middleware against wasi:http@0.3.0" } else { "" }
    )]
    Compose {
        /// The plugin.
        plugin: String,
        /// What is wrong.
        cause: String,
        /// Each component compiles alone, so an export does not match its import.
        mismatch: bool,
    },
    /// The configuration names an unknown model.
    #[error("the plugin {plugin} names the model '{model}', which this server does not have; it has: {}", known.join(", "))]
    NoModel {
        /// The plugin.
        plugin: String,
        /// The unknown model.
        model: String,
        /// The server's models.
        known: Vec<String>,
    },
    /// The deployment is granted a secret that the server lacks.
    #[error(
        "the plugin {plugin} is granted the secret '{secret}', which this server does not define; start it with \
         --secret {secret}=file:PATH, or remove the name from `grants.secrets`"
    )]
    NoSecret {
        /// The plugin.
        plugin: String,
        /// Name of the secret.
        secret: String,
    },
    /// The deployment is granted a folder that the server lacks.
    #[error(
        "the plugin {plugin} is granted the folder '{folder}', which this server does not give; start it with \
         --folder {folder}=DIR, or remove the name from `grants.folders`"
    )]
    NoFolder {
        /// The plugin.
        plugin: String,
        /// Name of the folder.
        folder: String,
    },
    /// The host is shutting down.
    #[error("the plugin {plugin} could not be loaded, because the host stopped")]
    Stopped {
        /// The plugin.
        plugin: String,
    },
}

impl PluginError {
    /// Why a component with these exports cannot be called.
    pub(crate) fn no_role(plugin: &str, exports: &BTreeSet<String>) -> Self {
        let exported = |interface: &&str| {
            exports
                .iter()
                .any(|name| compatible(name) == compatible(interface))
        };
        let plugin = plugin.to_owned();
        match LINKED_INTERFACES.into_iter().find(exported) {
            Some(interface) => Self::OnlyLinkable { plugin, interface },
            None => Self::NoRole { plugin },
        }
    }

    /// Why a component with these unknown imports cannot be linked to the host.
    pub(crate) fn imports(plugin: &str, unknown: Vec<String>) -> Self {
        let plugin = plugin.to_owned();
        let is_next = |import: &String| compatible(import) == compatible(HTTP_3);
        match unknown.iter().any(is_next) {
            true => Self::OnlyMiddleware { plugin },
            false => Self::Imports { plugin, unknown },
        }
    }

    /// Whether the component needs more than a compilation or an initialization may use, or crashes one.
    pub fn is_compile_limit(&self) -> bool {
        match self {
            Self::CompileStopped { cause, .. } | Self::InitializeStopped { cause, .. } => {
                cause.is_final()
            }
            _ => false,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLarge { .. } | Self::TooLargeTogether { .. } => "component-too-large",
            Self::NotWasm { .. } | Self::CoreModule { .. } => "not-a-component",
            Self::Compile { .. } => "does-not-compile",
            Self::CompileStopped { .. } | Self::InitializeStopped { .. } => {
                match self.is_compile_limit() {
                    true => "compile-limit",
                    false => "compile-unavailable",
                }
            }
            Self::Initialize { .. } => "does-not-initialize",
            Self::Imports { .. } => "unknown-import",
            Self::Mismatch { .. } => "interface-mismatch",
            Self::NoRole { .. } => "missing-export",
            Self::OnlyLinkable { .. } | Self::OnlyMiddleware { .. } => "only-linkable",
            Self::NoHandlerForMiddleware { .. } => "no-handler-export",
            Self::NotLinked { .. } => "not-linked",
            Self::NotImported { .. } | Self::NotMiddleware { .. } => "linked-not-imported",
            Self::LinkedExportMissing { .. } => "linked-export-missing",
            Self::LinkedImports { .. } => "linked-import-refused",
            Self::Compose { .. } | Self::TooMuchMiddleware { .. } => "does-not-compose",
            Self::NoModel { .. } => "no-model",
            Self::NoSecret { .. } => "no-secret",
            Self::NoFolder { .. } => "no-folder",
            Self::Stopped { .. } => "shutting-down",
        }
    }
}
