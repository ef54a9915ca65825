//! A handler with linked components: deployed, shown, rolled back and restored with them, and refused where they
//! do not fit.

use corral_tests::artifacts::{component, unknown_export, unknown_import};
use corral_tests::deployments::{deploy, digest, manifest, show, try_deploy, upload};
use corral_tests::{Corral, artifacts, run_plugin, scratch_dir};
use serde_json::{Value, json};

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

/// A manifest for `/NAME` with a secret in its environment.
fn linked(name: &str, handler: &str, links: Value) -> Value {
    let configuration = json!({"SECRET": "of the handler"});
    let more = json!({"linked": links, "configuration": configuration});
    manifest(name, handler, more)
}

/// The first piece that the template renders for the deployment `a`: what it sees of the environment.
fn environment(corral: &Corral) -> Value {
    let messages = json!([{"role": "user", "content": "1+1"}]);
    let chat = json!({"messages": messages, "settings": "{\"do\":\"environment\"}"});
    corral.post_json("/a/chat", &chat)["pieces"][0][0].clone()
}

const EMPTY: &str = "variables [], arguments []";
const INHERITED: &str = r#"variables [("SECRET", "of the handler")], arguments []"#;

#[test]
fn template_environment_is_empty_unless_inherited() {
    let corral = Corral::start_with_store(&[]);
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("templates"));
    let links = json!({"templating": template});
    assert_eq!(deploy(&corral, &linked("a", &handler, links.clone())), 1);
    assert_eq!(environment(&corral), EMPTY);
    let inherited = json!({"templating": {"component": template, "inherit": true}});
    let number = deploy(&corral, &linked("a", &handler, inherited.clone()));
    assert_eq!(number, 2);
    assert_eq!(environment(&corral), INHERITED);

    let shown = show(&corral, "a");
    assert_eq!(shown["revisions"][0]["manifest"]["linked"], links);
    assert_eq!(shown["revisions"][1]["manifest"]["linked"], inherited);
    assert_eq!(shown["deployment"]["traffic"][0]["linked"], inherited);
    let to_first = json!({"revision": 1}).to_string();
    let answer = corral.request_admin("POST", "/deployments/a/rollback", to_first);
    assert_eq!(answer.ok_json()["traffic"][0]["linked"], links);
    assert_eq!(environment(&corral), EMPTY);

    // An inheriting template that imports models gets the deployment's.
    let model_lister = upload(&corral, &component("linked-models"));
    let inherited = json!({"templating": {"component": model_lister, "inherit": true}});
    deploy(&corral, &linked("a", &handler, inherited));
    assert_eq!(environment(&corral), "template knows tiny");
    corral.check_alive();
}

#[test]
fn guest_loop_uses_linked_sampler() {
    let corral = Corral::start_with_store(&[]);
    let handler = upload(&corral, &component("linked-loop"));
    let sampler_component = upload(&corral, &component("samplers"));
    let links = json!({"sampling": {"least": sampler_component}});
    deploy(&corral, &manifest("a", &handler, json!({"linked": links})));
    assert_eq!(corral.get("/a").body, "3 candidates, token 10\n");
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
    assert_eq!(corral.get("/a").body, "3 candidates, token 10\n");
    corral.check_alive();
}

/// A handler and what is linked with it, by the names of test plugins, and how the deploy is refused. UNKNOWN-IMPORT,
/// UNKNOWN-EXPORT, JUNK and GONE are no such components.
const MISFITS: &str = r#"
linked-handler {} => not-linked: imports corral:plugin/templating@0.1.0, which exactly one linked component must export
misbehave {"templating": "templates"} => linked-not-imported: is linked with a template, but does not import
linked-handler {"templating": "samplers"} => linked-export-missing: a (linked component 'templating') exports no corral:plugin/templating@0.1.0, for which it is linked; it exports corral:plugin/sampling@0.1.0
linked-handler {"templating": "templates", "sampling": {"x": "templates"}} => linked-export-missing: a (linked component 'sampling.x') exports no corral:plugin/sampling@0.1.0
linked-handler {"templating": "UNKNOWN-EXPORT"} => linked-export-missing: exports no corral:plugin/templating
linked-handler {"templating": "linked-models"} => linked-import-refused: is not given: corral:inference/models@0.1.0
linked-handler {"templating": {"component": "UNKNOWN-IMPORT", "inherit": true}} => linked-export-missing: exports no corral:plugin/templating
linked-handler {"templating": "JUNK"} => not-a-component: a (linked component 'templating') is not a WebAssembly component
linked-handler {"templating": "GONE"} => no-component: "GONE"
linked-handler {"sampling": {"x": {"component": "samplers", "inherit": true}}} => invalid-manifest: 'linked.sampling.x.inherit' cannot be true
templates {} => only-linkable: [linked] templating = "FILE.wasm"
samplers {} => only-linkable: [linked] sampling.NAME = "FILE.wasm"
"#;

#[test]
fn misfit_linked_components_say_why() {
    let corral = Corral::start_with_store(&[]);
    let plugins = [
        "linked-handler",
        "templates",
        "linked-models",
        "samplers",
        "misbehave",
    ];
    let mut digests = plugins
        .map(|name| (name, upload(&corral, &component(name))))
        .to_vec();
    digests.extend([
        ("UNKNOWN-IMPORT", upload(&corral, &unknown_import())),
        ("UNKNOWN-EXPORT", upload(&corral, &unknown_export())),
        ("JUNK", upload(&corral, b"hello")),
        ("GONE", digest(b"never uploaded")),
    ]);
    let digest_of = |plugin: &str| {
        let mut digests = digests.iter().filter(|(name, _)| *name == plugin);
        &digests.next().expect(plugin).1
    };
    let with_digests = |text: &str| {
        let mut text = text.to_owned();
        for (name, digest) in &digests {
            text = text.replace(&format!(": \"{name}\""), &format!(": \"{digest}\""));
        }
        text
    };
    for line in MISFITS.trim().lines() {
        let (main, rest) = line.split_once(' ').expect("a handler");
        let (links, error) = rest.split_once(" => ").expect("an error");
        let (code, expected) = error.split_once(": ").expect("a detail");
        let links = serde_json::from_str(&with_digests(links)).expect("JSON");
        let answer = try_deploy(&corral, &linked("a", digest_of(main), links));
        let status = if code == "no-component" { 404 } else { 422 };
        let detail = answer.problem(status, code);
        let expected = expected.replace("\"GONE\"", digest_of("GONE"));
        assert!(detail.contains(&expected), "{detail}");
    }
    let handler = digest_of("linked-handler");
    let no_digest = linked("a", handler, json!({"templating": "a file"}));
    assert_eq!(try_deploy(&corral, &no_digest).status, 400);
    corral.get("/a").problem(404, "no-route");
    corral.check_alive();
}

#[test]
fn too_deep_types_are_refused() {
    let corral = Corral::start_with_store(&[]);
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("templates"));
    let deep = upload(&corral, &deep_types(100_000));
    corral.with_neighbors(|| {
        for (component, links, at_fault) in [
            (&deep, json!({}), "a"),
            (
                &handler,
                json!({"templating": deep}),
                "a (linked component 'templating')",
            ),
            (
                &handler,
                json!({"templating": template, "sampling": {"x": deep}}),
                "a (linked component 'sampling.x')",
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
    let corral = Corral::start_in(&dir, &[]);
    let handler = upload(&corral, &component("linked-handler"));
    let template = upload(&corral, &component("templates"));
    let file = corral.component_file(&template);
    // The handler cannot serve without its linked components, so the first revision is another component.
    let bare = upload(&corral, &component("misbehave"));
    deploy(&corral, &manifest("a", &bare, json!({})));
    let links = json!({"templating": template});
    assert_eq!(deploy(&corral, &linked("a", &handler, links.clone())), 2);
    let roll_back = |corral: &Corral, body: Value| {
        let path = "/deployments/a/rollback";
        let answer = corral.request_admin("POST", path, body.to_string());
        answer.ok_json()
    };
    let rolled_back = roll_back(&corral, json!({"revision": 1}));
    assert_eq!(rolled_back["traffic"][0].get("linked"), None);
    assert_eq!(corral.get("/a/ok").body, "ok");
    // Killed while the linked revision is stored but not serving.
    drop(corral);
    let corral = Corral::start_in(&dir, &[]);
    assert!(file.is_file(), "a revision names the template");
    assert_eq!(corral.get("/a/ok").body, "ok");
    roll_back(&corral, json!({}));
    assert_eq!(environment(&corral), EMPTY);
    // Killed while it serves.
    drop(corral);
    let corral = Corral::start_in(&dir, &[]);
    assert_eq!(environment(&corral), EMPTY);
    let shown = show(&corral, "a");
    assert_eq!(shown["revisions"][1]["manifest"]["linked"], links);
    drop(corral);
    // Without its file the revision cannot serve, and the deployment shows why.
    std::fs::remove_file(&file).expect("removed");
    let corral = Corral::start_in(&dir, &[]);
    let shown = show(&corral, "a");
    let error = shown["deployment"]["traffic"][0]["error"].as_str();
    assert!(
        error.is_some_and(|error| error.contains(&template)),
        "{shown}"
    );
    // After another upload it serves.
    upload(&corral, &component("templates"));
    assert_eq!(deploy(&corral, &linked("a", &handler, links)), 3);
    assert_eq!(environment(&corral), EMPTY);
    // A component without a revision is dropped at the next start at the latest.
    let answer = corral.request_admin("DELETE", "/deployments/a", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    drop(corral);
    let corral = Corral::start_in(&dir, &[]);
    assert!(!file.exists());
    corral.check_alive();
}

#[test]
fn deploy_uploads_linked_components() {
    let corral = Corral::start_with_store(&[]);
    let path = |name: &str| artifacts::plugin(name).display().to_string();
    let handler = path("linked-handler");
    let template = format!("templating={}", path("templates"));
    let sampler = format!("sampling.least={}", path("samplers"));
    let deploy = ["deploy", &handler, "--name", "a", "--route", "/a"];
    let with = ["--linked", &template, "--linked", &sampler];
    let printed = corral.cli_output(&[&deploy[..], &with].concat());
    assert!(printed.starts_with("deployed revision 1: a is serving at /a"));
    assert_eq!(environment(&corral), EMPTY);

    // The same from a manifest whose components lie beside it and are uploaded already.
    let dir = scratch_dir();
    for name in ["linked-handler", "templates", "samplers"] {
        let copy = dir.join(format!("{name}.wasm"));
        std::fs::copy(artifacts::plugin(name), copy).expect("copied");
    }
    let text = "name = 'a'\ncomponent = 'linked-handler.wasm'\nroutes = ['/a']\n\
                [linked]\ntemplating = { component = 'templates.wasm', inherit = true }\n\
                [linked.sampling]\nleast = 'samplers.wasm'\n\
                [configuration]\nSECRET = 'of the handler'\n";
    let manifest = dir.join("corral.toml");
    std::fs::write(&manifest, text).expect("written");
    let manifest = manifest.to_str().expect("a path in UTF-8");
    corral.cli_output(&["deploy", manifest]);
    assert_eq!(environment(&corral), INHERITED);
    let page = corral.cli_output(&["show", "a"]);
    let sampler_digest = digest(&component("samplers"));
    let template_start = &digest(&component("templates"))[..19];
    let sampler_start = &sampler_digest[..19];
    for inherits in ["", " (inherits)"] {
        let links =
            format!("templating={template_start}{inherits} sampling.least={sampler_start}\n");
        assert!(page.contains(&links), "{links}\n{page}");
    }
    let listed = corral.cli_json(&["list"]);
    let all = listed["deployments"].as_array().expect("a list");
    let one = all.iter().find(|one| one["name"] == "a");
    let one = one.expect("the deployment");
    let found = &one["traffic"][0]["linked"]["sampling"]["least"];
    assert_eq!(*found, *sampler_digest);

    let beside_manifest = ["deploy", manifest, "--linked", &template];
    corral
        .cli(&beside_manifest)
        .check_error(2, &["--linked and --middleware are for a component"]);
    for (code, more, expected) in [
        (
            2,
            &["--linked", "sampling.X=x.wasm"][..],
            "'X' is not a valid name of a sampler",
        ),
        (
            1,
            &["--linked", "templating=/no.wasm"],
            "cannot read the component /no.wasm",
        ),
        (1, &[], "--linked templating=FILE"),
    ] {
        let ended = corral.cli(&[&deploy[..], more].concat());
        ended.check_error(code, &[expected]);
    }
}

#[test]
fn run_accepts_linked_components() {
    let path = |name: &str| artifacts::plugin(name).display().to_string();
    let run = |linked: &str| {
        let generate = artifacts::plugin("generate");
        run_plugin(&generate, &["--linked", linked], &["1+1="])
    };
    let ended = run(&format!("sampling.least={}", path("samplers")));
    assert_eq!((ended.code, &*ended.stdout), (Some(0), "2\n"), "{ended:?}");
    let ended = run(&format!("templating={}", path("templates")));
    ended.check_error(1, &["does not import"]);
    run("sampling.least=/no.wasm").check_error(1, &["/no.wasm"]);
}
