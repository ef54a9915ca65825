use super::*;
use crate::engine::engine;
use crate::linker::linker;
use crate::runtime::{Runtime, Source};
use crate::settings::{self, Links, Settings, Terms};
use crate::soundness::tests::deep_type;
use crate::validate::compile;
use corral_engine::Models;

/// What both kinds of components below begin with: `$count`, which calls `wasi:cli/environment` of some
/// version and returns how many variables there are.
fn counting(version: &str) -> String {
    format!(
        r#"
        (import "wasi:cli/environment@{version}" (instance $environment
            (export "get-environment" (func (result (list (tuple string string)))))))
        (core module $memory
            (memory (export "memory") 1)
            (global $next (mut i32) (i32.const 1024))
            (func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
                (global.set $next (i32.add (local.get $at) (local.get 3)))
                (local.get $at)))
        (core instance $memory (instantiate $memory))
        (alias core export $memory "memory" (core memory $m))
        (alias core export $memory "realloc" (core func $realloc))
        (core func $get (canon lower (func $environment "get-environment")
            (memory $m) (realloc $realloc)))
        (core module $counting
            (import "h" "memory" (memory 1))
            (import "h" "get" (func $get (param i32)))
            (func (export "count") (result i32)
                (call $get (i32.const 0)) (i32.load (i32.const 4))))
        (core instance $counting (instantiate $counting (with "h" (instance
            (export "memory" (memory $m)) (export "get" (func $get))))))
        (alias core export $counting "count" (core func $count))"#
    )
}

/// A template, as far as linking goes: `render` returns how many variables it sees. `more` are further
/// imports.
fn template(version: &str, more: &str) -> Vec<u8> {
    let counting = counting(version);
    wat::parse_str(format!(
        r#"(component {more} {counting}
        (func $render (result u32) (canon lift (core func $count)))
        (instance $templating (export "render" (func $render)))
        (export "corral:plugin/templating@0.1.0" (instance $templating)))"#
    ))
    .unwrap()
}

/// A command that succeeds if it sees `own` variables and the template `linked` ones.
fn command(own: usize, linked: usize, more: &str) -> Vec<u8> {
    let counting = counting("0.2.3");
    wat::parse_str(format!(
        r#"(component {more}
        (import "corral:plugin/templating@0.1.3" (instance $templating
            (export "render" (func (result u32)))))
        {counting}
        (core func $render (canon lower (func $templating "render")))
        (core module $main
            (import "h" "count" (func $count (result i32)))
            (import "h" "render" (func $render (result i32)))
            (func (export "run") (result i32) (i32.or
                (i32.ne (call $count) (i32.const {own}))
                (i32.ne (call $render) (i32.const {linked})))))
        (core instance $main (instantiate $main (with "h" (instance
            (export "count" (func $count)) (export "render" (func $render))))))
        (func $run (result (result)) (canon lift (core func $main "run")))
        (instance $cli (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $cli)))"#
    ))
    .unwrap()
}

/// A component with these imports that exports an interface of this name.
fn other(imports: &str, export: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component {imports} (instance $nothing) (export "{export}" (instance $nothing)))"#
    ))
    .unwrap()
}

/// A sampling plugin, with something else in the place of a part of its text.
fn sampler(part: &str, other: &str) -> Vec<u8> {
    let text = include_str!("../sampling/sampler.wat");
    let text = ["{start}", "{needs}", "{sample}", part]
        .iter()
        .zip(["", "", "", other])
        .fold(text.to_owned(), |text, (part, other)| {
            text.replace(part, other)
        });
    wat::parse_str(text).unwrap()
}

const MODELS: &str = r#"(import "corral:inference/models@0.1.0" (instance
    (export "available" (func (result (list string))))))"#;

fn linked(handler: Vec<u8>, template: Vec<u8>, inherit: bool) -> Parts {
    Parts {
        templating: Some(Templating {
            bytes: template.into(),
            inherit,
        }),
        ..Parts::alone(handler)
    }
}

fn sampled(handler: Vec<u8>, samplers: &[(&str, Vec<u8>)]) -> Parts {
    let named = |(name, bytes): &(&str, Vec<u8>)| ((*name).to_owned(), bytes.clone().into());
    Parts {
        sampling: samplers.iter().map(named).collect(),
        ..Parts::alone(handler)
    }
}

/// The error's code and text.
fn refused(parts: &Parts, limit: usize) -> (&'static str, String) {
    let settings = Settings {
        instances: 1,
        ..Settings::default()
    };
    let engine = engine(&settings).unwrap();
    let linker = linker(&engine).unwrap();
    match compile(&engine, &linker, "chat", parts, limit) {
        Ok(_) => ("", String::new()),
        Err(error) => (error.code(), error.to_string()),
    }
}

#[tokio::test]
async fn a_template_sees_no_environment_unless_it_inherits_it() {
    let settings = Settings {
        instances: 2,
        ..Settings::default()
    };
    let runtime = Runtime::new(settings, Models::loaded(Vec::new())).unwrap();
    // Of a version that the handler has as well, of another one, and of WASI 0.3.
    for version in ["0.2.3", "0.2.12", "0.3.0"] {
        for (inherit, sees) in [(false, 0), (true, 1)] {
            let component = Source::from(template(version, ""));
            let terms = Terms {
                environment: vec![("SECRET".to_owned(), "x".to_owned())],
                links: Links {
                    templating: Some(settings::Link { component, inherit }),
                    ..Links::default()
                },
                ..Terms::default()
            };
            let account = runtime.account();
            let handler = command(1, sees, "");
            let plugin = runtime
                .plugin_for(&account, "chat", handler, terms)
                .await
                .unwrap();
            let exit = plugin.run(&[]).await.unwrap();
            assert!(exit.success(), "{version}, inherited: {inherit}");
        }
    }
}

#[test]
fn a_handler_and_its_links_fit_or_are_told_why_not() {
    let good = || template("0.2.3", "");
    let sampling = r#"(import "corral:plugin/sampling@0.1.0" (instance))"#;
    let sampler = || other("", SAMPLING);
    let handler = || command(0, 0, "");
    let run = || other("", "wasi:cli/run@0.2.0");
    for (parts, code, expected) in [
        (
            Parts::alone(handler()),
            "not-linked",
            "imports corral:plugin/templating@0.1.0, which a linked component answers, but it is linked with 0",
        ),
        (
            linked(run(), good(), false),
            "link-not-imported",
            "does not import corral:plugin/templating@0.1.0; leave the link away",
        ),
        (
            linked(handler(), other("", "a:b/c@0.1.0"), true),
            "wrong-link",
            "chat (its link templating) exports no corral:plugin/templating@0.1.0, for which it is linked; it exports a:b/c@0.1.0",
        ),
        (
            linked(handler(), sampler(), false),
            "wrong-link",
            "it exports corral:plugin/sampling@0.1.0",
        ),
        (
            linked(handler(), template("0.2.3", MODELS), false),
            "link-import",
            "is not given: corral:inference/models@0.1.0; build it without, or, if it may use",
        ),
        (
            linked(
                handler(),
                template(
                    "0.2.3",
                    r#"(import "wasi:http/outgoing-handler@0.2.1" (instance))
                       (import "wasi:http/client@0.3.0" (instance))"#,
                ),
                false,
            ),
            "link-import",
            "wasi:http/outgoing-handler@0.2.1, wasi:http/client@0.3.0; build",
        ),
        (
            linked(
                handler(),
                template("0.2.3", r#"(import "a:b/c@1.0.0" (instance))"#),
                true,
            ),
            "unknown-import",
            "chat (its link templating) imports what this host does not offer: a:b/c@1.0.0",
        ),
        (
            linked(handler(), wat::parse_str("(module)").unwrap(), false),
            "not-a-component",
            "chat (its link templating) is a core",
        ),
        (
            linked(handler(), b"\0asm\x0d\0\x01\0rest".to_vec(), false),
            "does-not-compile",
            "chat (its link templating) cannot be compiled",
        ),
        (
            linked(handler(), other("", TEMPLATING), false),
            "does-not-compose",
            "; build both against one version of corral:plugin",
        ),
        (
            Parts::alone(good()),
            "to-be-linked",
            "name this one in its corral.toml: [links] templating = \"FILE.wasm\"",
        ),
        (
            Parts::alone(sampler()),
            "to-be-linked",
            "[links] sampling.NAME = \"FILE.wasm\"",
        ),
        (
            sampled(other(sampling, "wasi:cli/run@0.2.0"), &[]),
            "not-linked",
            "linked with 0 that could",
        ),
        (
            sampled(
                other(sampling, "wasi:cli/run@0.2.0"),
                &[("a", sampler()), ("b", sampler())],
            ),
            "not-linked",
            "linked with 2 that could; link it with one: [links] sampling.NAME",
        ),
        (
            sampled(command(0, 0, sampling), &[("a", sampler())]),
            "not-linked",
            "imports corral:plugin/templating@0.1.0",
        ),
    ] {
        let (found, text) = refused(&parts, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_sampling_component_is_looked_at_like_any_linked_one() {
    let run = || {
        let mut parts = linked(command(0, 0, ""), template("0.2.3", ""), false);
        parts
            .sampling
            .insert("a".to_owned(), sampler("{}", "").into());
        parts
    };
    assert_eq!(refused(&run(), 1 << 20), ("", String::new()));
    for (sampler, code, expected) in [
        (
            other(MODELS, SAMPLING),
            "link-import",
            "chat (its link sampling.a) imports what a linked component is not given: corral:inference/models@0.1.0; build it without",
        ),
        (
            template("0.2.3", ""),
            "wrong-link",
            "chat (its link sampling.a) exports no corral:plugin/sampling@0.1.0",
        ),
        (
            other("", SAMPLING),
            "interface-mismatch",
            "chat (its link sampling.a) does not fit this host's interfaces",
        ),
        (
            sampler(r#"(field "history" u32)"#, r#"(field "history" u64)"#),
            "interface-mismatch",
            "[method]sampler.needs has another type",
        ),
    ] {
        let mut parts = run();
        parts.sampling.insert("a".to_owned(), sampler.into());
        let (found, text) = refused(&parts, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("inherit"), "{text}");
    }
}

#[test]
fn what_is_made_of_the_parts_is_no_larger_than_a_component_may_be() {
    let parts = linked(command(0, 0, ""), template("0.2.3", ""), false);
    let (code, text) = refused(&parts, parts.bytes());
    assert_eq!(code, "component-too-large");
    assert!(
        text.contains("chat and what it is linked with have more bytes together than the "),
        "{text}"
    );
}

#[test]
fn what_is_made_of_the_parts_does_not_grow_without_bound() {
    // One type more than are written again, each of one byte here and of more there.
    let head = [7, 0xc4, 0x84, 0x3d, 0xc1, 0x84, 0x3d];
    let types = [&head[..], &[0x7f; 1_000_001]].concat();
    let handler = [command(0, 0, ""), types].concat();
    let parts = linked(handler, template("0.2.3", ""), false);
    let (code, text) = refused(&parts, 64 << 20);
    assert_eq!(code, "does-not-compose", "{text}");
    assert!(text.contains("more than 1000000 types"), "{text}");
    let (code, text) = refused(&parts, 2 << 20);
    assert_eq!(code, "component-too-large", "{text}");
}

#[test]
fn what_a_section_says_of_its_number_is_not_believed() {
    // Four thousand million instances, none of which is there.
    let many = [5, 5, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let handler = [command(0, 0, ""), many.to_vec()].concat();
    let parts = linked(handler, template("0.2.3", ""), false);
    let (code, text) = refused(&parts, 1 << 20);
    assert_eq!(code, "does-not-compose", "{text}");
    assert!(!text.contains("build both"), "{text}");
}

/// A template with types so deep.
fn deep(depth: usize) -> Vec<u8> {
    [template("0.2.3", ""), deep_type(depth)].concat()
}

#[test]
fn parts_are_looked_at_before_they_are_compiled() {
    let sampler = other("", SAMPLING);
    let handler = || command(0, 0, "");
    let nested = |number: usize| {
        let parts = "(component)".repeat(number);
        template("0.2.3", &parts)
    };
    let sampled_too = || {
        let mut parts = linked(handler(), other("", TEMPLATING), false);
        let samplers = [("a", sampler.clone()), ("b", deep(5_000))];
        parts.sampling = sampled(Vec::new(), &samplers).sampling;
        parts
    };
    for (parts, code, expected) in [
        (linked(handler(), deep(100), false), "", ""),
        (
            linked(handler(), deep(101), false),
            "does-not-compile",
            "chat (its link templating) cannot be compiled: component type nesting is too deep",
        ),
        (
            linked(handler(), deep(5_000), false),
            "does-not-compile",
            "too deep",
        ),
        (
            Parts::alone(deep(5_000)),
            "does-not-compile",
            "the plugin chat cannot be compiled: component type nesting",
        ),
        // It is looked at although another one is at fault.
        (
            sampled_too(),
            "does-not-compile",
            "chat (its link sampling.b) cannot be compiled: component type nesting",
        ),
        (
            linked(handler(), nested(1_000), false),
            "does-not-compile",
            "chat (its link templating) cannot be compiled: it consists of more than 1000",
        ),
        // With the handler there are too many.
        (
            linked(handler(), nested(997), false),
            "does-not-compose",
            "it consists of more than 1000 components and modules",
        ),
    ] {
        let (found, text) = refused(&parts, 1 << 20);
        assert_eq!(found, code, "{text}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("build both"), "{text}");
    }
}

#[test]
fn thousands_of_names_are_not_repeated() {
    let imports = |number: usize| {
        let one = |i| format!(r#"(import "a:b/c{i}@1.0.0" (instance (export "f" (func))))"#);
        Vec::from_iter((0..number).map(one)).concat()
    };
    let run = |number| Parts::alone(other(&imports(number), "wasi:cli/run@0.2.0"));
    // Wasmtime takes 1,000 instances, and its own export is one.
    let (code, text) = refused(&run(900), 1 << 20);
    assert_eq!(code, "unknown-import", "{text}");
    assert!(
        text.contains("a:b/c14@1.0.0, a:b/c15@1.0.0, … and 884 more. It offers"),
        "{text}"
    );
    let (code, text) = refused(&run(1_001), 1 << 20);
    assert_eq!(code, "does-not-compile");
    assert!(text.contains("more than 1000 imports"), "{text}");
}

/// Resources, aliases between imports, async functions, streams, and the same interface in two versions and
/// with two sets of functions: nothing of one part's imports is mixed with the other's.
#[test]
fn each_part_keeps_its_own_imports() {
    let streams = |version: &str, function: &str| {
        format!(
            r#"
            (import "wasi:io/error@{version}" (instance $error (export "error" (type (sub resource)))))
            (alias export $error "error" (type $e))
            (import "wasi:io/streams@{version}" (instance $streams
                (export "input-stream" (type (sub resource)))
                (alias outer 1 $e (type $e'))
                (export "error" (type $error (eq $e')))
                (type $stream-error' (variant
                    (case "last-operation-failed" (own $error)) (case "closed")))
                (export "stream-error" (type $stream-error (eq $stream-error')))
                (export "output-stream" (type $stream (sub resource)))
                (export "[method]output-stream.{function}" (func (param "self" (borrow $stream))
                    (result (result (error $stream-error)))))))
            (alias export $streams "input-stream" (type $input))
            (import "wasi:cli/stdin@{version}" (instance
                (alias outer 1 $input (type $i'))
                (export "input-stream" (type $i (eq $i')))
                (export "get-stdin" (func (result (own $i))))))"#
        )
    };
    let clock = r#"(import "wasi:clocks/monotonic-clock@0.3.0" (instance
        (export "wait-for" (func async (param "how-long" u64)))))"#;
    let stdin = r#"
        (import "wasi:cli/types@0.3.0" (instance $types
            (type $code' (enum "io" "illegal-byte-sequence" "pipe"))
            (export "error-code" (type (eq $code')))))
        (alias export $types "error-code" (type $code))
        (import "wasi:cli/stdin@0.3.0" (instance
            (alias outer 1 $code (type $code'))
            (export "error-code" (type $error (eq $code')))
            (type $bytes (stream u8))
            (type $ended (future (result (error $error))))
            (export "read-via-stream" (func (result (tuple $bytes $ended))))))"#;
    let own = format!("{clock}{}{stdin}", streams("0.2.3", "flush"));
    for version in ["0.2.3", "0.2.12"] {
        let theirs = format!("{}{stdin}{clock}", streams(version, "blocking-flush"));
        let parts = linked(command(0, 0, &own), template("0.3.0", &theirs), false);
        assert_eq!(refused(&parts, 1 << 20), ("", String::new()), "{version}");
    }
}
