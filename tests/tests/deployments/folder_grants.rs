//! `grants.folders`: plugins read the folders that the operator gives and their deployment is granted, and nothing else.

use corral_tests::deployments::{deploy_plugin, manifest, show, try_deploy, upload};
use corral_tests::{Corral, artifacts, new_key, scratch_dir, serve, utf8, wait_until};
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// What stands outside of the folder.
const OUTSIDE: &str = "of the operator alone";

/// A directory with the folder `docs`, and a file beside it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let place = Place(scratch_dir());
        std::fs::write(place.0.join("outside"), OUTSIDE).expect("written");
        let docs = place.docs();
        std::fs::create_dir_all(docs.join("sub")).expect("created");
        std::fs::create_dir_all(docs.join("empty")).expect("created");
        std::fs::write(docs.join("file"), "of the folder").expect("written");
        std::fs::write(docs.join("sub/deep"), "below it").expect("written");
        symlink("sub/deep", docs.join("inward")).expect("linked");
        symlink("../outside", docs.join("outward")).expect("linked");
        symlink(place.0.join("outside"), docs.join("absolute")).expect("linked");
        symlink("..", docs.join("parent")).expect("linked");
        place
    }

    fn docs(&self) -> PathBuf {
        self.0.join("docs")
    }

    /// `--folder` for the folder.
    fn argument(&self) -> String {
        format!("docs={}", self.docs().display())
    }

    fn start(&self) -> Corral {
        Corral::start_with_store(&["--folder", &self.argument()])
    }
}

fn grants() -> Value {
    json!({"grants": {"folders": ["docs"]}})
}

/// What the test plugin at `/NAME` responds.
fn call(corral: &Corral, name: &str, call: Value) -> Value {
    corral.post_json(&format!("/{name}"), &call)
}

fn is_error(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.starts_with("error: "))
}

#[test]
fn granted_folder_is_read() {
    let place = Place::new();
    let corral = place.start();
    deploy_plugin(&corral, "a", "folders", grants());
    let found = call(&corral, "a", json!({"preopens": {}}));
    assert_eq!(found, json!(["/docs"]));
    for read in ["read", "read-3"] {
        for (path, expected) in [
            ("/docs/file", "of the folder"),
            ("/docs/sub/deep", "below it"),
            ("/docs/sub/../file", "of the folder"),
            ("/docs/inward", "below it"),
        ] {
            let found = call(&corral, "a", json!({read: path}));
            assert_eq!(found, expected, "{read} {path}");
        }
    }
    let names = json!([
        "absolute", "empty", "file", "inward", "outward", "parent", "sub"
    ]);
    for list in ["list", "list-3"] {
        assert_eq!(call(&corral, "a", json!({list: "/docs"})), names, "{list}");
        let expected = json!(["deep"]);
        assert_eq!(call(&corral, "a", json!({list: "/docs/sub"})), expected);
    }
    // The operator changes files while it is served.
    std::fs::write(place.docs().join("file"), "another text").expect("written");
    let expected = "another text";
    assert_eq!(call(&corral, "a", json!({"read": "/docs/file"})), expected);

    let shown = corral.cli_output(&["show", "a"]);
    let expected = "revision 1 may read the folder docs\n";
    assert!(shown.contains(expected), "{shown}");
    let names = &show(&corral, "a")["revisions"][0]["manifest"]["grants"]["folders"];
    assert_eq!(*names, json!(["docs"]));
    assert!(!shown.contains(utf8(&place.docs())), "{shown}");
}

#[test]
fn paths_out_of_folder_are_refused() {
    let place = Place::new();
    let corral = place.start();
    deploy_plugin(&corral, "a", "folders", grants());
    for path in [
        "/docs/../outside",
        "/docs/sub/../../outside",
        "/docs/outward",
        "/docs/absolute",
        "/docs/parent/outside",
        "/docs//etc/passwd",
        "/etc/passwd",
        "/outside",
        "outside",
        utf8(&place.0.join("outside")),
    ] {
        for read in ["read", "read-3"] {
            let value = call(&corral, "a", json!({read: path}));
            assert!(is_error(&value), "{read} {path}: {value}");
        }
    }
    for path in ["/docs/..", "/docs/parent", "/"] {
        for list in ["list", "list-3"] {
            let value = call(&corral, "a", json!({list: path}));
            assert!(is_error(&value), "{list} {path}: {value}");
        }
    }
    // A pipe would block a thread.
    let pipe = Command::new("mkfifo")
        .arg(place.docs().join("pipe"))
        .status();
    assert!(pipe.expect("it runs").success());
    for read in ["read", "read-3"] {
        let value = call(&corral, "a", json!({read: "/docs/pipe"}));
        assert!(is_error(&value), "{read}: {value}");
    }
}

#[test]
fn folder_cannot_be_changed() {
    let place = Place::new();
    let corral = place.start();
    deploy_plugin(&corral, "a", "folders", grants());
    let modified = || {
        let found = std::fs::metadata(place.docs().join("file")).expect("there");
        found.modified().expect("known")
    };
    let before = modified();
    assert_eq!(call(&corral, "a", json!({"change": "/docs"})), json!([]));
    let file = std::fs::read_to_string(place.docs().join("file"));
    assert_eq!(file.expect("there").as_str(), "of the folder");
    assert_eq!(modified(), before);
    assert!(place.docs().join("empty").exists());
    assert!(!place.docs().join("new").exists());
}

#[test]
fn without_grant_there_is_no_folder() {
    let place = Place::new();
    let corral = place.start();
    deploy_plugin(&corral, "none", "folders", json!({}));
    assert_eq!(call(&corral, "none", json!({"preopens": {}})), json!([]));
    for question in [json!({"read": "/docs/file"}), json!({"list": "/docs"})] {
        let value = call(&corral, "none", question);
        assert!(is_error(&value), "{value}");
    }
    // A folder that the operator does not give.
    let digest = upload(&corral, &artifacts::component("folders"));
    let more = json!({"grants": {"folders": ["docs", "other"]}});
    let wanted = manifest("a", &digest, more);
    let detail = try_deploy(&corral, &wanted).problem(422, "no-folder");
    for part in [
        "the folder 'other'",
        "--folder other=DIR",
        "`grants.folders`",
    ] {
        assert!(detail.contains(part), "{detail}");
    }
}

#[test]
fn middleware_has_folders_only_if_inherited() {
    let place = Place::new();
    let corral = place.start();
    let handler = upload(&corral, &artifacts::component("folders"));
    let middleware = upload(&corral, &artifacts::component("middleware"));
    for (name, linked, expected) in [
        ("plain", json!([middleware]), ""),
        (
            "trusted",
            json!([{"component": middleware, "inherit": true}]),
            "of the folder",
        ),
    ] {
        let mut more = grants();
        more["linked"] = json!({"middleware": linked});
        let deployed = try_deploy(&corral, &manifest(name, &handler, more));
        assert_eq!(deployed.status, 201, "{deployed:?}");
        let headers = [("x-middleware", "folder")];
        let answer = corral.request("POST", &format!("/{name}"), &headers, "");
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(answer.body.as_str(), expected, "{name}");
        // The handler has its grant in both.
        let expected = "of the folder";
        assert_eq!(call(&corral, name, json!({"read": "/docs/file"})), expected);
    }
}

#[test]
fn open_files_listings_and_streams_are_bounded() {
    let place = Place::new();
    // An eighth of 512 files is for folders, and a quarter of these for a deployment.
    let store = scratch_dir();
    let corral = Corral::start_after(
        "ulimit -n 512",
        Some(&store),
        &["--folder", &place.argument()],
    );
    for name in ["a", "b"] {
        deploy_plugin(&corral, name, "folders", grants());
    }
    for open in ["open", "open-3"] {
        let many = json!({open: {"path": "/docs/file", "count": 100}});
        assert_eq!(call(&corral, "a", many.clone()), 16, "{open}");
        // Files end with their call.
        assert_eq!(call(&corral, "a", many), 16, "{open}");
    }
    let listings = json!({"listings-3": {"path": "/docs", "count": 100}});
    assert_eq!(call(&corral, "a", listings), 16);
    // A call may end a little after its response.
    corral.wait_until_idle();
    let streams = json!({"streams": {"path": "file", "count": 200}});
    assert_eq!(call(&corral, "a", streams), 128);
    let expected = "of the folder";
    assert_eq!(call(&corral, "b", json!({"read": "/docs/file"})), expected);
    // A directory that is too long to be listed.
    let long = place.docs().join("long");
    std::fs::create_dir(&long).expect("created");
    for index in 0..=10_000 {
        std::fs::write(long.join(index.to_string()), "").expect("written");
    }
    for list in ["list", "list-3"] {
        let value = call(&corral, "a", json!({list: "/docs/long"}));
        assert!(is_error(&value), "{value}");
    }
    assert_eq!(call(&corral, "a", json!({"read": "/docs/long/7"})), "");
}

#[test]
fn tenants_share_no_open_file() {
    let place = Place::new();
    let keys = place.0.join("keys.toml");
    let key = |tenant: &str| format!("Bearer {}", new_key(&keys, &["--tenant", tenant]));
    let (alice, bob) = (key("alice"), key("bob"));
    let corral = Corral::start_with_store(&["--keys", utf8(&keys), "--folder", &place.argument()]);
    let mut more = grants();
    more["reuse"] = json!({});
    deploy_plugin(&corral, "a", "folders", more);
    let waiting = |count: f64| {
        wait_until("waiting instances", || {
            let name = "corral_deployment_instances_waiting{deployment=\"a\"}";
            corral.metrics().get(name) == count
        });
    };
    let ask = |key: &str, question: Value| {
        let headers = [("authorization", key)];
        let answer = corral.request("POST", "/a", &headers, &question.to_string());
        answer.ok_json()
    };
    assert_eq!(ask(&alice, json!({"hold": "/docs/file"})), "held");
    waiting(1.0);
    assert_eq!(ask(&bob, json!({"held": {}})), json!([0, ""]));
    waiting(2.0);
    assert_eq!(ask(&alice, json!({"held": {}})), json!([1, "f the folder"]));
}

#[test]
fn reload_gives_and_takes_folders() {
    let place = Place::new();
    let config = place.0.join("server.toml");
    // Relative to the file.
    let define = |folders: Value| {
        std::fs::write(&config, format!("folder = {folders}\n")).expect("written");
    };
    define(json!(["docs=docs"]));
    let store = scratch_dir();
    let corral = Corral::start_in(&store, &["--config", utf8(&config)]);
    deploy_plugin(&corral, "a", "folders", grants());
    let read = || call(&corral, "a", json!({"read": "/docs/file"}));
    assert_eq!(read(), "of the folder");
    // Another directory under the same name.
    std::fs::create_dir(place.0.join("next")).expect("created");
    std::fs::write(place.0.join("next/file"), "of the next").expect("written");
    define(json!(["docs=next"]));
    corral.signal("HUP");
    wait_until("the next folder", || read() == "of the next");
    // One that does not exist changes nothing.
    define(json!(["docs=gone"]));
    corral.signal("HUP");
    wait_until("the error", || corral.stderr().contains("nothing changes"));
    assert_eq!(read(), "of the next");
    define(json!([]));
    corral.signal("HUP");
    wait_until("the end of the folder", || is_error(&read()));
    drop(corral);

    // A server without the folder does not serve the deployment until a reload gives it.
    let corral = Corral::start_in(&store, &["--config", utf8(&config)]);
    let problem = corral.cli_output(&["show", "a"]);
    assert!(problem.contains("the folder 'docs'"), "{problem}");
    define(json!(["docs=docs"]));
    corral.signal("HUP");
    wait_until("the deployment", || {
        let answer = corral.post("/a", json!({"read": "/docs/file"}).to_string());
        answer.status == 200 && answer.body.contains("of the folder")
    });
}

#[test]
fn check_opens_folders() {
    let place = Place::new();
    let model = artifacts::long_model();
    let check = |folder: &str| serve(&["--check", "--model", utf8(&model), "--folder", folder]);
    let ended = check(&place.argument());
    let line = format!("folder docs is {}\n", place.docs().display());
    assert!(ended.code == Some(0), "{ended:?}");
    assert!(ended.stdout.contains(&line), "{ended:?}");
    let file = format!("docs={}", place.0.join("outside").display());
    check(&file).check_error(
        2,
        &["cannot open the folder 'docs'", "expected a directory"],
    );
}
