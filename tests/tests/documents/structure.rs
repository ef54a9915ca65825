//! The crates of the host, and the files of a crate, import each other as ARCHITECTURE.md says.
//!
//! A file imports another file if one of its paths, in `use` or elsewhere, leads to a name that the other file declares.
//! Paths are followed through modules and re-exports, but not through globs; an inline module is a part of its file. Not
//! counted are tests and imports of the crate's root.

use corral_tests::authoring::root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The crates, and those that each imports.
const CRATES: [(&str, &str); 11] = [
    ("cli", "client-tls engine isolation runtime server"),
    ("server", "engine runtime"),
    ("runtime", "engine isolation"),
    ("engine", "constraint isolation llama sampling scheduler"),
    ("scheduler", ""),
    ("sampling", ""),
    ("constraint", ""),
    ("isolation", ""),
    ("llama", "attention"),
    ("attention", ""),
    ("client-tls", ""),
];
/// Longest chain of re-exports. Only a name of another crate exceeds it: `use time;` seems to lead to itself.
const MAX_REEXPORTS: usize = 20;

/// The text of a module's file.
type Read<'a> = &'a dyn Fn(&str) -> String;
/// For each module the modules that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[derive(Default)]
struct Module {
    /// The names that a `use` brings, and their paths.
    names: BTreeMap<String, String>,
    /// The paths in the code, those of `use` included.
    paths: Vec<String>,
}

/// The modules of a crate, as paths: empty for the root, and `/a/b` for the one in `src/a/b.rs`.
#[derive(Default)]
struct Crate(BTreeMap<String, Module>);

impl Crate {
    fn new(read: Read) -> Self {
        let mut parsed = Crate::default();
        parsed.add_module(read, "");
        parsed
    }

    fn add_module(&mut self, read: Read, module: &str) {
        let mut tokens = Vec::new();
        flatten(read(module).parse().expect(module), &mut tokens);
        let tokens: Vec<_> = tokens.iter().map(String::as_str).collect();
        let mut parsed = Module::default();
        let mut code = tokens.as_slice();
        while let [first, next @ ..] = code {
            code = match code {
                ["mod", name, ";", rest @ ..] => {
                    self.add_module(read, &format!("{module}/{name}"));
                    rest
                }
                // Not the `use<…>` of a type's bounds.
                ["use", second, ..] if *second != "<" => parsed.add_use("", next),
                [_, ":", ":", ..] => {
                    let (mut path, mut code) = ((*first).to_owned(), next);
                    while let [":", ":", name, rest @ ..] = code {
                        path = format!("{path}::{name}");
                        code = rest;
                    }
                    parsed.paths.push(path);
                    code
                }
                _ => next,
            };
        }
        self.0.insert(module.to_owned(), parsed);
    }

    /// The module that a path leads to or that declares the path's item, and whether there is an item. `None` if the path
    /// leads out of the crate, or to an item of its own module.
    fn resolve(&self, from: &str, path: &str, reexports: usize) -> Option<(String, bool)> {
        let mut module = from.to_owned();
        for (number, name) in path.split("::").enumerate() {
            match self.look_up(&module, name, reexports) {
                Some((found, false)) => module = found,
                Some(item) => return Some(item),
                None => return (number > 0).then_some((module, true)),
            }
        }
        Some((module, false))
    }

    fn look_up(&self, module: &str, name: &str, reexports: usize) -> Option<(String, bool)> {
        let target = match name {
            "crate" => String::new(),
            "self" | "*" => module.to_owned(),
            "super" => module.rsplit_once('/')?.0.to_owned(),
            name => format!("{module}/{name}"),
        };
        if self.0.contains_key(&target) {
            return Some((target, false));
        }
        let path = self.0[module].names.get(name)?;
        let is_followed = reexports < MAX_REEXPORTS;
        is_followed.then(|| self.resolve(module, path, reexports + 1))?
    }

    fn imports(&self) -> Imports {
        let imports = self.0.iter().map(|(module, Module { paths, .. })| {
            let found = paths.iter().flat_map(|path| self.resolve(module, path, 0));
            let targets = found.map(|(target, _)| target);
            let others = targets.filter(|target| !target.is_empty() && target != module);
            (module.clone(), others.collect())
        });
        imports.collect()
    }
}

impl Module {
    /// Adds the names and paths of a `use` after `prefix`. Returns the code after them.
    fn add_use<'a>(&mut self, prefix: &str, code: &'a [&'a str]) -> &'a [&'a str] {
        match code {
            ["{", rest @ ..] => {
                let mut code = rest;
                loop {
                    code = match code {
                        ["}", rest @ ..] => return rest,
                        [",", rest @ ..] => rest,
                        _ => self.add_use(prefix, code),
                    };
                }
            }
            [name, ":", ":", rest @ ..] => self.add_use(&format!("{prefix}{name}::"), rest),
            [name, rest @ ..] => {
                let path = format!("{prefix}{name}");
                let (alias, rest) = match rest {
                    ["as", alias, rest @ ..] => (*alias, rest),
                    _ if *name == "self" => (prefix.rsplit("::").nth(1).unwrap_or(""), rest),
                    _ => (*name, rest),
                };
                self.names.insert(alias.to_owned(), path.clone());
                self.paths.push(path);
                rest
            }
            [] => code,
        }
    }
}

/// Appends the tokens of the code without tests. Braces stand around each group, whatever delimits it.
fn flatten(code: TokenStream, tokens: &mut Vec<String>) {
    let is_test = |attribute: &TokenTree| {
        let text = attribute.to_string().replace(' ', "");
        text.starts_with("[cfg(test") || text.starts_with("[cfg(all(test")
    };
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => [";", ","].contains(&token.to_string().as_str()),
    };
    let mut code = code.into_iter().peekable();
    while let Some(token) = code.next() {
        if let TokenTree::Group(group) = token {
            tokens.push("{".to_owned());
            flatten(group.stream(), tokens);
            tokens.push("}".to_owned());
            continue;
        }
        let token = token.to_string();
        if token == "#" && code.peek().is_some_and(is_test) {
            code.find(is_end);
        } else {
            tokens.push(token);
        }
    }
}

/// A circle that leaves a module of the crate's root. It ends with the file that it begins with.
fn circle(imports: &Imports) -> Option<Vec<&str>> {
    let top = |module: &str| module.split('/').nth(1).map(str::to_owned);
    for (from, targets) in imports {
        for to in targets.iter().filter(|to| top(to) != top(from)) {
            let mut paths = VecDeque::from([vec![from.as_str(), to.as_str()]]);
            let mut seen = BTreeSet::new();
            while let Some(path) = paths.pop_front() {
                let last = *path.last()?;
                if last == from {
                    return Some(path);
                }
                for next in imports[last].iter().filter(|next| seen.insert(*next)) {
                    paths.push_back([path.as_slice(), &[next.as_str()]].concat());
                }
            }
        }
    }
    None
}

#[test]
fn imports_form_no_circle_across_modules() {
    for (name, _) in CRATES {
        let read = |module: &str| {
            let file = if module.is_empty() { "/lib" } else { module };
            let path = root().join(format!("host/{name}/src{file}.rs"));
            std::fs::read_to_string(path).expect(file)
        };
        let imports = Crate::new(&read).imports();
        let circle = circle(&imports).map(|modules| modules.join(".rs -> ") + ".rs");
        let advice = "Move what two of these files need into one that imports neither.";
        assert_eq!(circle, None, "Circle in host/{name}/src. {advice}");
    }
}

#[test]
fn circle_through_reexport_and_macro_is_found() {
    let circle = |right: &str| {
        let read = |module: &str| match module {
            "" => "mod left; mod right;".to_owned(),
            "/left" => "mod part; pub use part::Part;".to_owned(),
            "/left/part" => "use crate::right::{self, Right}; pub struct Part(Right);".to_owned(),
            _ => right.to_owned(),
        };
        circle(&Crate::new(&read).imports()).map(|modules| modules.join(" "))
    };
    let found = circle("fn show() { println!(\"{}\", crate::left::Part::NAME) }");
    assert_eq!(found.as_deref(), Some("/left/part /right /left/part"));
    let only_in_tests = "#[cfg(test)] mod tests { use crate::left::Part; }";
    assert_eq!(circle(only_in_tests), None);
}

#[test]
fn crates_import_what_the_diagram_shows() {
    for (name, expected) in CRATES {
        let manifest = root().join(format!("host/{name}/Cargo.toml"));
        let manifest = std::fs::read_to_string(manifest).expect("readable");
        let sections = manifest.split("\n[").filter(|section| {
            section.starts_with("dependencies]") || section.starts_with("target.")
        });
        let imports = sections.flat_map(|section| section.split("\ncorral-").skip(1));
        let imports = imports.filter_map(|import| import.split(['.', ' ']).next());
        let imports = Vec::from_iter(BTreeSet::from_iter(imports)).join(" ");
        assert_eq!(
            imports, expected,
            "imports of host/{name}: see the diagram in ARCHITECTURE.md"
        );
    }
}

/// Cargo runs only the files that `main.rs` declares.
#[test]
fn groups_of_tests_declare_their_files() {
    let entries = std::fs::read_dir(root().join("tests/tests")).expect("readable");
    for group in entries.map(|entry| entry.expect("readable").path()) {
        let Ok(main) = std::fs::read_to_string(group.join("main.rs")) else {
            continue;
        };
        let files = std::fs::read_dir(&group).expect("readable");
        for file in files.map(|entry| entry.expect("readable").path()) {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let is_module = file.extension().is_some_and(|end| end == "rs") && name != "main";
            let is_declared = main.lines().any(|line| line == format!("mod {name};"));
            let advice = "main.rs of its directory does not declare it";
            assert!(is_declared || !is_module, "{}: {advice}", file.display());
        }
    }
}
