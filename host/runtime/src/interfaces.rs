//! Names of interfaces: those the host offers, and those that make a component callable or linkable.

use std::collections::BTreeSet;

/// The interfaces that the [linker](crate::linker) provides. A plugin may import a compatible version of each: the same major
/// version, or the same minor version before 1.0.
pub(crate) const OFFERED: &[&str] = &[
    "corral:inference/inference-async@0.1.0",
    "corral:inference/inference-sync@0.1.0",
    "corral:inference/inference@0.1.0",
    "corral:inference/constraints@0.1.0",
    "corral:inference/budget@0.1.0",
    "corral:inference/models@0.1.0",
    "corral:inference/types@0.1.0",
    "wasi:cli/environment@0.2.12",
    "wasi:cli/environment@0.3.0",
    "wasi:cli/exit@0.2.12",
    "wasi:cli/exit@0.3.0",
    "wasi:cli/stderr@0.2.12",
    "wasi:cli/stderr@0.3.0",
    "wasi:cli/stdin@0.2.12",
    "wasi:cli/stdin@0.3.0",
    "wasi:cli/stdout@0.2.12",
    "wasi:cli/stdout@0.3.0",
    "wasi:cli/terminal-input@0.2.12",
    "wasi:cli/terminal-input@0.3.0",
    "wasi:cli/terminal-output@0.2.12",
    "wasi:cli/terminal-output@0.3.0",
    "wasi:cli/terminal-stderr@0.2.12",
    "wasi:cli/terminal-stderr@0.3.0",
    "wasi:cli/terminal-stdin@0.2.12",
    "wasi:cli/terminal-stdin@0.3.0",
    "wasi:cli/terminal-stdout@0.2.12",
    "wasi:cli/terminal-stdout@0.3.0",
    "wasi:cli/types@0.3.0",
    "wasi:clocks/monotonic-clock@0.2.12",
    "wasi:clocks/monotonic-clock@0.3.0",
    "wasi:clocks/system-clock@0.3.0",
    "wasi:clocks/types@0.3.0",
    "wasi:clocks/wall-clock@0.2.12",
    "wasi:config/store@0.2.0-rc.1",
    "wasi:filesystem/preopens@0.2.12",
    "wasi:filesystem/preopens@0.3.0",
    "wasi:filesystem/types@0.2.12",
    "wasi:filesystem/types@0.3.0",
    "wasi:http/client@0.3.0",
    "wasi:http/outgoing-handler@0.2.12",
    "wasi:http/types@0.2.12",
    "wasi:http/types@0.3.0",
    "wasi:io/error@0.2.12",
    "wasi:io/poll@0.2.12",
    "wasi:io/streams@0.2.12",
    "wasi:keyvalue/store@0.2.0-draft",
    "wasi:logging/logging@0.1.0-draft",
    "wasi:random/insecure-seed@0.2.12",
    "wasi:random/insecure-seed@0.3.0",
    "wasi:random/insecure@0.2.12",
    "wasi:random/insecure@0.3.0",
    "wasi:random/random@0.2.12",
    "wasi:random/random@0.3.0",
    "wasi:sockets/instance-network@0.2.12",
    "wasi:sockets/ip-name-lookup@0.2.12",
    "wasi:sockets/ip-name-lookup@0.3.0",
    "wasi:sockets/network@0.2.12",
    "wasi:sockets/tcp-create-socket@0.2.12",
    "wasi:sockets/tcp@0.2.12",
    "wasi:sockets/types@0.3.0",
    "wasi:sockets/udp-create-socket@0.2.12",
    "wasi:sockets/udp@0.2.12",
    "wasmcloud:messaging/consumer@0.3.0",
    "wasmcloud:messaging/types@0.3.0",
];

pub(crate) const HTTP_3: &str = "wasi:http/handler@0.3.0";
pub(crate) const HTTP_2: &str = "wasi:http/incoming-handler@0.2.0";
pub(crate) const MESSAGES: &str = "wasmcloud:messaging/handler@0.3.0";
pub(crate) const RUN_3: &str = "wasi:cli/run@0.3.0";
pub(crate) const RUN_2: &str = "wasi:cli/run@0.2.0";
/// Exports that make a component callable.
pub(crate) const ROLES: [&str; 5] = [HTTP_3, HTTP_2, MESSAGES, RUN_3, RUN_2];

pub(crate) const TEMPLATING: &str = "corral:plugin/templating@0.1.0";
pub(crate) const SAMPLING: &str = "corral:plugin/sampling@0.1.0";
/// Exports that make a component linkable.
pub(crate) const LINKED_INTERFACES: [&str; 2] = [TEMPLATING, SAMPLING];

/// The manifest field that links components with this interface.
pub(crate) fn manifest_field(interface: &str) -> &'static str {
    match interface {
        TEMPLATING => "templating",
        _ => "sampling.NAME",
    }
}

/// The packages that the host offers, without repeating each of their interfaces.
pub(crate) fn offered_packages() -> String {
    let packages: BTreeSet<_> = OFFERED
        .iter()
        .map(|name| {
            let (package, rest) = name.split_once('/').unwrap_or((name, ""));
            let version = rest.split_once('@').map_or("", |(_, version)| version);
            format!("{package}@{version}")
        })
        .collect();
    Vec::from_iter(packages).join(", ")
        + ", and corral:plugin@0.1.0 from a component under [linked]"
}

/// Whether an export makes a component callable.
pub(crate) fn is_role(export: &str) -> bool {
    ROLES
        .iter()
        .any(|role| compatible(export) == compatible(role))
}

/// The interface of `name@version`, and the part of the version that compatible versions share.
pub(crate) fn compatible(name: &str) -> (&str, Option<&str>) {
    let Some((interface, version)) = name.split_once('@') else {
        return (name, None);
    };
    let parts = if version.starts_with("0.") { 2 } else { 1 };
    let end = version
        .match_indices('.')
        .nth(parts - 1)
        .map_or(version.len(), |(at, _)| at);
    (interface, Some(&version[..end]))
}

/// The imports that the host does not offer.
pub(crate) fn unknown_imports<'a>(imports: impl Iterator<Item = &'a str>) -> Vec<String> {
    let offered: BTreeSet<_> = OFFERED.iter().copied().map(compatible).collect();
    imports
        .filter(|name| !offered.contains(&compatible(name)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_packages_are_those_offered() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit/deps");
        let mut count = 0;
        for file in std::fs::read_dir(dir).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let (namespace, rest) = name.split_once('-').unwrap();
            let package = rest.strip_suffix(".wit").unwrap().split_once('-');
            let (package, version) = package.unwrap();
            let (package, version) = (format!("{namespace}:{package}/"), format!("@{version}"));
            let offered = |name: &&str| name.starts_with(&package) && name.ends_with(&version);
            assert!(OFFERED.iter().any(offered), "{name}");
            count += 1;
        }
        assert_eq!(count, 17);
    }

    #[test]
    fn compatible_versions_match_the_linkers() {
        assert_eq!(compatible("a:b/c@0.2.12"), compatible("a:b/c@0.2.0"));
        assert_ne!(compatible("a:b/c@0.2.12"), compatible("a:b/c@0.3.0"));
        assert_eq!(compatible("a:b/c@1.2.3"), compatible("a:b/c@1.9.0"));
        assert_ne!(compatible("a:b/c@1.2.3"), compatible("a:b/c@2.0.0"));
        assert_eq!(compatible("f"), ("f", None));
    }
}
