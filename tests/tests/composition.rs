//! A handler with linked components: deployed, shown, rolled back and restored with them, and refused where they
//! do not fit.

use corral_tests::deployments::{deploy, digest, manifest, show, try_deploy, upload};
use corral_tests::{Corral, Ended, artifacts, scratch_dir};
use serde_json::{Value, json};
use std::path::Path;

fn with_store(dir: &Path) -> Corral {
    let dir = dir.to_str().expect("ours");
    Corral::start_with(&["--store", dir])
}

fn component(name: &str) -> Vec<u8> {
    std::fs::read(artifacts::plugin(name)).expect("readable")
}

/// A component with `depth` nested component types.
fn deep_types(depth: usize) -> Vec<u8> {
    let number = |mut n: usize| {
        let mut bytes = Vec::new();
        while n > 127 {
            bytes.push((n & 127) as u8 | 128);
            n >>= 7;
        }
        bytes.push(n as u8);
        bytes
    };
    // One type: a component with one type, and so on.
    let types = [&[1], &*[0x41, 1, 1].repeat(depth - 1), &[0x41, 0]].concat();
    let head = b"\0asm\x0d\0\x01\0\x07".to_vec();
    [head, number(types.len()), types].concat()
}

/// The response of the handler at `/NAME`, whose template sees `secret` and this many variables.
fn rendered(name: &str, sees: &str, variables: usize) -> String {
    format!(
        "template read /{name}\ntemplate sees {sees}\n{variables} variables, 0 arguments\nown of the handler\n"
    )
}

/// A manifest for `/NAME` with a secret in its environment.
fn linked(name: &str, handler: &str, links: Value) -> Value {
    let configuration = json!({"SECRET": "of the handler"});
    let more = json!({"linked": links, "configuration": configuration});
    manifest(name, handler, more)
}

#[test]
fn template_environment_is_empty_unless_inherited() {
    let corral = with_store(&scratch_dir());
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("linked-template"));
    let links = json!({"templating": template});
    assert_eq!(deploy(&corral, &linked("a", &handler, links.clone())), 1);
    let denied = rendered("a", "", 0);
    assert_eq!(corral.get("/a").body, denied);
    let inherited = json!({"templating": {"component": template, "inherit": true}});
    assert_eq!(
        deploy(&corral, &linked("a", &handler, inherited.clone())),
        2
    );
    assert_eq!(corral.get("/a").body, rendered("a", "of the handler", 1));

    let shown = show(&corral, "a");
    assert_eq!(shown["revisions"][0]["manifest"]["linked"], links);
    assert_eq!(shown["revisions"][1]["manifest"]["linked"], inherited);
    assert_eq!(shown["deployment"]["traffic"][0]["linked"], inherited);
    let to_first = json!({"revision": 1}).to_string();
    let answer = corral.request_admin("POST", "/deployments/a/rollback", to_first);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["traffic"][0]["linked"], links);
    assert_eq!(corral.get("/a").body, denied);

    // An inheriting template that imports models gets the deployment's.
    let model_lister = upload(&corral, &component("linked-models"));
    let inherited = json!({"templating": {"component": model_lister, "inherit": true}});
    deploy(&corral, &linked("a", &handler, inherited));
    let told = "template knows tiny\nown of the handler\n";
    assert_eq!(corral.get("/a").body, told);
    corral.check_alive();
}

#[test]
fn guest_loop_uses_linked_sampler() {
    let corral = with_store(&scratch_dir());
    let handler = upload(&corral, &component("linked-loop"));
    let sampler_component = upload(&corral, &component("linked-sampler"));
    let links = json!({"sampling": {"least": sampler_component}});
    deploy(&corral, &manifest("a", &handler, json!({"linked": links})));
    assert_eq!(corral.get("/a").body, "3 candidates, token 12\n");
    // Samplers alone do not change a handler that does not import them.
    let bare = upload(&corral, &component("misbehave"));
    let links = json!({"sampling": {"least": sampler_component, "same": sampler_component}});
    deploy(&corral, &manifest("b", &bare, json!({"linked": links})));
    assert_eq!(corral.get("/b/ok").body, "ok");
    let (two, none) = (links, json!({}));
    for (links, linked) in [(two, 2), (none, 0)] {
        let answer = try_deploy(&corral, &manifest("a", &handler, json!({"linked": links})));
        let detail = answer.problem(422, "not-linked");
        let expected = format!(
            "imports corral:plugin/sampling@0.1.0, which exactly one linked component must export, but {linked} of them do"
        );
        assert!(detail.contains(&expected), "{detail}");
    }
    assert_eq!(corral.get("/a").body, "3 candidates, token 12\n");
    corral.check_alive();
}

#[test]
fn misfit_linked_components_say_why() {
    let corral = with_store(&scratch_dir());
    let digests = [
        "linked-handler",
        "linked-template",
        "linked-models",
        "linked-sampler",
        "misbehave",
        "unknown-import",
        "unknown-export",
    ]
    .map(|name| upload(&corral, &component(name)));
    let [
        handler,
        template,
        model_lister,
        sampler_component,
        misbehave,
        unknown_import,
        unknown_export,
    ] = &digests;
    let junk = upload(&corral, b"hello");
    let gone = digest(b"never uploaded");
    for (main, links, status, code, expected) in [
        (
            handler,
            json!({}),
            422,
            "not-linked",
            "imports corral:plugin/templating@0.1.0, which exactly one linked component must export",
        ),
        (
            misbehave,
            json!({"templating": template}),
            422,
            "link-not-imported",
            "is linked with a template, but does not import",
        ),
        (
            handler,
            json!({"templating": sampler_component}),
            422,
            "wrong-link",
            "a (its link templating) exports no corral:plugin/templating@0.1.0, for which it is linked; it exports corral:plugin/sampling@0.1.0",
        ),
        (
            handler,
            json!({"templating": template, "sampling": {"x": template}}),
            422,
            "wrong-link",
            "a (its link sampling.x) exports no corral:plugin/sampling@0.1.0",
        ),
        (
            handler,
            json!({"templating": unknown_export}),
            422,
            "wrong-link",
            "exports no corral:plugin/templating",
        ),
        (
            handler,
            json!({"templating": model_lister}),
            422,
            "link-import",
            "is not given: corral:inference/models@0.1.0",
        ),
        (
            handler,
            json!({"templating": {"component": unknown_import, "inherit": true}}),
            422,
            "wrong-link",
            "exports no corral:plugin/templating",
        ),
        (
            handler,
            json!({"templating": junk}),
            422,
            "not-a-component",
            "a (its link templating) is not a WebAssembly component",
        ),
        (
            handler,
            json!({"templating": gone}),
            404,
            "no-component",
            gone.as_str(),
        ),
        (
            handler,
            json!({"sampling": {"x": {"component": sampler_component, "inherit": true}}}),
            422,
            "bad-manifest",
            "'linked.sampling.x.inherit' cannot be true",
        ),
        (
            template,
            json!({}),
            422,
            "to-be-linked",
            "[linked] templating = \"FILE.wasm\"",
        ),
        (
            sampler_component,
            json!({}),
            422,
            "to-be-linked",
            "[linked] sampling.NAME = \"FILE.wasm\"",
        ),
    ] {
        let answer = try_deploy(&corral, &linked("a", main, links));
        let detail = answer.problem(status, code);
        assert!(detail.contains(expected), "{detail}");
    }
    let answer = try_deploy(
        &corral,
        &linked("a", handler, json!({"templating": "a file"})),
    );
    assert_eq!(answer.status, 400, "{answer:?}");
    corral.get("/a").problem(404, "no-route");
    corral.check_alive();
}

#[test]
fn too_deep_types_are_refused() {
    let corral = with_store(&scratch_dir());
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("linked-template"));
    let deep = upload(&corral, &deep_types(100_000));
    corral.with_neighbors(|| {
        for (component, links, at_fault) in [
            (&deep, json!({}), "a"),
            (
                &handler,
                json!({"templating": deep}),
                "a (its link templating)",
            ),
            (
                &handler,
                json!({"templating": template, "sampling": {"x": deep}}),
                "a (its link sampling.x)",
            ),
        ] {
            let answer = try_deploy(&corral, &linked("a", component, links));
            let detail = answer.problem(422, "does-not-compile");
            let expected = format!(
                "the plugin {at_fault} cannot be compiled: component type nesting is too deep"
            );
            assert!(detail.contains(&expected), "{detail}");
        }
    });
    corral.check_alive();
}

#[test]
fn linked_components_live_with_their_revision() {
    let dir = scratch_dir();
    let corral = with_store(&dir);
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("linked-template"));
    let bare = upload(&corral, &component("misbehave"));
    // The handler cannot serve without its linked components, so the first revision is another component.
    deploy(&corral, &manifest("a", &bare, json!({})));
    let links = json!({"templating": template});
    assert_eq!(deploy(&corral, &linked("a", &handler, links.clone())), 2);
    let denied = rendered("a", "", 0);
    assert_eq!(corral.get("/a").body, denied);
    let back = || json!({"revision": 1}).to_string();
    let answer = corral.request_admin("POST", "/deployments/a/rollback", back());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["traffic"][0].get("linked"), None);
    assert_eq!(corral.get("/a/ok").body, "ok");
    // Killed while the linked revision is stored but not serving.
    drop(corral);
    let file = |digest: &str| {
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        dir.join("components").join(format!("{hex}.wasm"))
    };
    assert!(file(&template).is_file());
    let corral = with_store(&dir);
    assert!(file(&template).is_file(), "a revision names it");
    assert_eq!(corral.get("/a/ok").body, "ok");
    let answer = corral.request_admin("POST", "/deployments/a/rollback", "{}");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(corral.get("/a").body, denied);
    // Killed while it serves.
    drop(corral);
    let corral = with_store(&dir);
    assert_eq!(corral.get("/a").body, denied);
    assert_eq!(
        show(&corral, "a")["revisions"][1]["manifest"]["linked"],
        links
    );
    drop(corral);
    // Without its file the revision cannot serve, and the list says so.
    std::fs::remove_file(file(&template)).expect("ours");
    let corral = with_store(&dir);
    let shown = show(&corral, "a");
    let problem = &shown["deployment"]["traffic"][0]["error"];
    let problem = problem.as_str().expect("it has one");
    assert!(problem.contains(&template), "{problem}");
    // After another upload it serves.
    upload(&corral, &component("linked-template"));
    assert_eq!(deploy(&corral, &linked("a", &handler, links)), 3);
    assert_eq!(corral.get("/a").body, denied);
    // A component without a revision may be dropped, at the latest at the next start.
    let answer = corral.request_admin("DELETE", "/deployments/a", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    drop(corral);
    let corral = with_store(&dir);
    assert!(!file(&template).exists());
    corral.check_alive();
}

struct Cli {
    corral: Corral,
    admin: String,
    token: String,
}

impl Cli {
    fn start() -> Self {
        let dir = scratch_dir();
        let corral = with_store(&dir);
        let admin = format!("http://{}", corral.admin());
        let token = dir.join("admin-token");
        Cli {
            corral,
            admin,
            token: token.to_str().expect("ours").to_owned(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        let server = ["--admin", &self.admin, "--token-file", &self.token];
        corral_tests::run(arguments.iter().chain(&server))
    }

    fn run_ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }
}

#[test]
fn deploy_uploads_linked_components() {
    let cli = Cli::start();
    let path = |name: &str| {
        let path = artifacts::plugin(name);
        path.to_str().expect("ours").to_owned()
    };
    let handler = path("linked-handler");
    let template = format!("templating={}", path("linked-template"));
    let sampler = format!("sampling.least={}", path("linked-sampler"));
    let deploy = ["deploy", &handler, "--name", "a", "--route", "/a"];
    let with = ["--linked", &template, "--linked", &sampler];
    let printed = cli.run_ok(&[&deploy[..], &with].concat());
    assert!(printed.starts_with("deployed revision 1: a is serving at /a"));
    let body = cli.corral.get("/a").body;
    assert!(body.starts_with("template read /a\n"), "{body}");

    // The same from a manifest whose parts lie beside it and are uploaded already.
    let dir = scratch_dir();
    for name in ["linked-handler", "linked-template", "linked-sampler"] {
        let copy = dir.join(format!("{name}.wasm"));
        std::fs::copy(artifacts::plugin(name), copy).expect("ours");
    }
    let text = "name = 'a'\ncomponent = 'linked-handler.wasm'\nroutes = ['/a']\n\
                [linked]\ntemplating = { component = 'linked-template.wasm', inherit = true }\n\
                [linked.sampling]\nleast = 'linked-sampler.wasm'\n\
                [configuration]\nSECRET = 'of the handler'\n";
    std::fs::write(dir.join("corral.toml"), text).expect("ours");
    cli.run_ok(&["deploy", dir.to_str().expect("ours")]);
    let body = cli.corral.get("/a").body;
    assert_eq!(body, rendered("a", "of the handler", 1));
    let page = cli.run_ok(&["show", "a"]);
    let short = |name: &str| {
        digest(&component(name))
            .chars()
            .take(19)
            .collect::<String>()
    };
    let (template_digest, sampler_digest) = (short("linked-template"), short("linked-sampler"));
    for expected in [
        format!("templating={template_digest} sampling.least={sampler_digest}\n"),
        format!("templating={template_digest} (inherits) sampling.least={sampler_digest}\n"),
    ] {
        assert!(page.contains(&expected), "{expected}\n{page}");
    }
    let listed = cli.run_ok(&["list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let all = listed["deployments"].as_array().expect("a list");
    let one = all.iter().find(|one| one["name"] == "a").expect("there");
    let whole = digest(&component("linked-sampler"));
    assert_eq!(one["traffic"][0]["linked"]["sampling"]["least"], *whole);

    let manifest = dir.join("corral.toml");
    let manifest = manifest.to_str().expect("ours");
    for (arguments, expected) in [
        (
            vec!["deploy", manifest, "--linked", &template],
            "--linked are for a component",
        ),
        (
            [&deploy[..], &["--linked", "least=x.wasm"]].concat(),
            "write templating=FILE or sampling.NAME=FILE",
        ),
        (
            [&deploy[..], &["--linked", "sampling.X=x.wasm"]].concat(),
            "'X' is not a valid name of a sampler",
        ),
        (
            [&deploy[..], &with, &["--linked", &template]].concat(),
            "--linked names templating twice",
        ),
        (
            [&deploy[..], &["--linked", "templating=/nowhere.wasm"]].concat(),
            "cannot read the component /nowhere.wasm",
        ),
        (deploy.to_vec(), "--linked templating=FILE"),
    ] {
        let ended = cli.run(&arguments);
        assert_ne!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains(expected), "{expected}: {ended:?}");
    }
}

#[test]
fn run_accepts_linked_components() {
    let model = artifacts::model();
    let generate = artifacts::plugin("generate");
    let sampler_component = artifacts::plugin("linked-sampler");
    let template = artifacts::plugin("linked-template");
    let text = |path: &Path| path.to_str().expect("ours").to_owned();
    let cache = artifacts::scratch().join("compiled");
    let run = |link: &str| {
        corral_tests::run([
            "run",
            &text(&generate),
            "--model",
            &text(&model),
            // See `Corral::start_with`.
            "--threads",
            "1",
            "--cache-dir",
            &text(&cache),
            "--linked",
            link,
            "--",
            "1+1=",
        ])
    };
    let ended = run(&format!("sampling.least={}", text(&sampler_component)));
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "2\n"), "{ended:?}");
    let ended = run(&format!("templating={}", text(&template)));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("does not import"), "{ended:?}");
    let ended = run("sampling.least=/nowhere.wasm");
    assert!(ended.stderr.contains("/nowhere.wasm"), "{ended:?}");
}
