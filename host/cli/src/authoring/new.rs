//! `corral new`: writes a project from a template.
//!
//! The SDK is in no registry, so the project gets the copy that this binary contains, as a path dependency, or the
//! one that `--sdk` names.

use super::embedded::{SDK_VERSION, file, files_in};
use crate::Error;
use crate::terminal::print;
use clap::{Args, ValueEnum};
use corral_server::deployments::DeploymentName;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use strum::{Display, EnumString};

/// Ignores what `corral build` and cargo write.
const GIT_IGNORE: &str = "/target\n*.wasm\n";

const CARGO_CONFIG: &str = "\
# The initial heap. Without it memory grows step by step in each request.
[target.'cfg(target_family = \"wasm\")']
rustflags = [\"-C\", \"link-arg=--initial-heap=524288\"]
";

/// Keywords of Rust, and crates that a package of this name would hide.
const RESERVED_NAMES: &[&str] = &[
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "continue",
    "core",
    "corral-sdk",
    "crate",
    "do",
    "dyn",
    "else",
    "enum",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "serde-json",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "while",
    "yield",
];

#[derive(Args, Debug)]
pub struct NewArgs {
    /// Name of the project: its directory, package and deployment
    #[arg(value_name = "NAME")]
    name: ProjectName,
    /// Kind of project
    #[arg(long, value_enum, default_value_t = Template::Handler)]
    template: Template,
    /// Language of its source: rust, python, javascript (js), c or go
    #[arg(long, value_name = "LANGUAGE", default_value = "rust")]
    lang: Language,
    /// Directory of the crate corral-sdk, such as plugins/sdk of a checkout [default: a copy in the project]
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, ValueEnum)]
#[strum(serialize_all = "lowercase")]
enum Template {
    Handler,
    Chat,
    Sampler,
    Templater,
    Middleware,
    Job,
}

impl Template {
    /// What a project in another language than Rust does, and the body of a request to it.
    fn example(self) -> (&'static str, &'static str) {
        match self {
            Template::Chat => (
                "Answers a chat in ChatML, the format of Qwen's models.",
                r#"{"messages": [{"role": "user", "content": "12+7="}]}"#,
            ),
            Template::Job => (
                "Works through a list of prompts and streams each answer as an event.",
                r#"{"prompts": ["12+7=", "20+22="]}"#,
            ),
            _ => ("Completes the request's body.", "12+7="),
        }
    }
}

/// A name for a directory, a package and a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProjectName(String);

impl FromStr for ProjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(['/', '\\']) {
            return Err(
                "write a name, not a path; the project is created in the working directory"
                    .to_owned(),
            );
        }
        let begins_with_letter = text.starts_with(|c: char| c.is_ascii_lowercase());
        if text.parse::<DeploymentName>().is_err() || !begins_with_letter {
            return Err(
                "write 1 to 63 lower-case letters, digits and '-', with a letter at the beginning and no '-' at the end"
                    .to_owned(),
            );
        }
        if RESERVED_NAMES.contains(&text) {
            return Err("Rust or a crate of the project has this name; choose another".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = no_language)]
enum Language {
    Rust,
    Python,
    #[strum(serialize = "javascript", serialize = "js")]
    JavaScript,
    C,
    Go,
}

fn no_language(text: &str) -> String {
    format!(
        "there are no templates in {} yet; write rust, python, javascript, c or go",
        text.escape_debug()
    )
}

/// Writes the project and says what to do next.
pub(crate) fn new(args: &NewArgs) -> Result<ExitCode, Error> {
    let NewArgs {
        name: ProjectName(name),
        template,
        lang,
        sdk,
    } = args;
    if let Some(project) = lang.project() {
        let title = project.title;
        if sdk.is_some() {
            return Err(Error::usage(format!(
                "the SDK of a project in {title} is a copy in the project; leave out --sdk"
            )));
        }
        if !project.has(*template) {
            let templates = Template::value_variants().iter();
            let templates = templates.filter(|template| project.has(**template));
            let names: Vec<_> = templates.map(Template::to_string).collect();
            return Err(Error::usage(format!(
                "there is no template {template} in {title}; write {}, or leave out --lang for one in Rust",
                names.join(", ")
            )));
        }
        create(name, |dir| project.write(dir, name, *template))?;
        return print(&format!(
            "created {name}, a {template} in {title} with corral-sdk {SDK_VERSION}\n\
             next: cd {name}, then follow its README.md\n"
        ));
    }
    let sdk = sdk.as_deref().map(sdk_dir).transpose()?;
    create(name, |dir| {
        write_project(dir, name, *template, sdk.as_deref())
    })?;
    print(&format!(
        "created {name}, a {template} with corral-sdk {SDK_VERSION}\n\
         next: cd {name} && cargo test && corral build && corral deploy\n"
    ))
}

impl Language {
    /// The project of a language whose SDK is a copy in the project. Cargo builds that of Rust.
    fn project(self) -> Option<LanguageProject> {
        let project = |title, template, sdk, sdk_copy, git_ignore| LanguageProject {
            title,
            template,
            sdk,
            sdk_copy,
            git_ignore,
        };
        match self {
            Language::Rust => None,
            Language::Python => Some(project(
                "Python",
                "templates/python",
                "python/corral_sdk",
                "corral_sdk",
                "/.venv\n__pycache__\n*.wasm\n",
            )),
            Language::JavaScript => Some(project(
                "JavaScript",
                "templates/javascript",
                "javascript",
                "corral-sdk",
                "/node_modules\n*.wasm\n",
            )),
            Language::C => Some(project("C", "templates/c", "c", "corral-sdk", "*.wasm\n")),
            Language::Go => Some(project(
                "Go",
                "templates/go",
                "go",
                "corral-sdk",
                "/corral-sdk/bindings\n*.wasm\n",
            )),
        }
    }
}

/// The files of a project with a copy of its SDK.
struct LanguageProject {
    title: &'static str,
    /// Embedded directory of the template `handler`.
    template: &'static str,
    /// Embedded directory.
    sdk: &'static str,
    /// The directory of the copy.
    sdk_copy: &'static str,
    git_ignore: &'static str,
}

impl LanguageProject {
    /// The embedded directory of what a template has in place of the files of `handler`.
    fn replaced(&self, template: Template) -> String {
        format!("{}-{template}", self.template)
    }

    fn has(&self, template: Template) -> bool {
        template == Template::Handler || files_in(&self.replaced(template)).next().is_some()
    }

    fn write(&self, dir: &Path, name: &str, template: Template) -> Result<(), std::io::Error> {
        let (about, data) = template.example();
        let replaced = self.replaced(template);
        for (path, text) in files_in(self.template).chain(files_in(&replaced)) {
            let text = text.replace("{{about}}", about).replace("{{data}}", data);
            write(&dir.join(path), &text.replace("{{name}}", name))?;
        }
        for (path, text) in files_in(self.sdk) {
            write(&dir.join(self.sdk_copy).join(path), text)?;
        }
        write(&dir.join(".gitignore"), self.git_ignore)
    }
}

/// Creates the project's directory and writes its files.
fn create(
    name: &str,
    write_files: impl FnOnce(&Path) -> Result<(), std::io::Error>,
) -> Result<(), Error> {
    let dir = Path::new(name);
    fs::create_dir(dir).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::failed(format!(
            "'{name}' exists already; choose another name, or remove it"
        )),
        _ => Error::context(format!("cannot create the directory '{name}': {error}"))(error),
    })?;
    write_files(dir).map_err(|error| {
        // This call created it, and it is incomplete.
        let _ = fs::remove_dir_all(dir);
        Error::context(format!("cannot write the project '{name}': {error}"))(error)
    })
}

fn write_project(
    dir: &Path,
    name: &str,
    template: Template,
    sdk: Option<&str>,
) -> Result<(), std::io::Error> {
    let fill = |text: &str| {
        text.replace("{{name}}", name)
            .replace("\"{{sdk}}\"", sdk.unwrap_or("\"sdk\""))
            .replace("{{sdk-version}}", SDK_VERSION)
    };
    for (path, text) in files_in(&format!("templates/{template}")) {
        write(&dir.join(path), &fill(text))?;
    }
    write(&dir.join(".gitignore"), GIT_IGNORE)?;
    write(&dir.join(".cargo/config.toml"), CARGO_CONFIG)?;
    write(&dir.join("Cargo.lock"), file("Cargo.lock"))?;
    if sdk.is_some() {
        return Ok(());
    }
    for (path, text) in files_in("sdk") {
        write(&dir.join("sdk").join(path), text)?;
    }
    let readme = format!(
        "# corral-sdk {SDK_VERSION}\n\n\
         The copy that corral {} contains. To replace it by that of another version, run `corral new` of that version,\n\
         and copy its `sdk` here.\n",
        env!("CARGO_PKG_VERSION")
    );
    write(&dir.join("sdk/README.md"), &readme)
}

/// Writes a file and the directories above it.
pub(super) fn write(file: &Path, text: &str) -> Result<(), std::io::Error> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(file, text)
}

/// The absolute path of an SDK's directory, as a string of TOML.
fn sdk_dir(path: &Path) -> Result<String, Error> {
    let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
    if !manifest.contains("name = \"corral-sdk\"") {
        return Err(Error::failed(format!(
            "{} is not the directory of the crate corral-sdk; name plugins/sdk of a checkout, or leave out --sdk",
            path.display()
        )));
    }
    let path = path.canonicalize()?;
    let text = path.to_str().ok_or_else(|| {
        Error::failed(format!(
            "the path {} is not UTF-8, so Cargo.toml cannot contain it; move the SDK",
            path.display()
        ))
    })?;
    // The escapes of JSON are escapes of TOML.
    Ok(serde_json::Value::from(text).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_packages_and_deployments() {
        for good in ["a", "shout", "shout-2"] {
            assert_eq!(good.parse(), Ok(ProjectName(good.to_owned())));
        }
        for (bad, expected) in [
            ("", "lower-case letters"),
            ("Shout", "lower-case letters"),
            ("shout_2", "lower-case letters"),
            ("2shout", "a letter at the beginning"),
            ("-a", "a letter at the beginning"),
            ("a-", "no '-' at the end"),
            ("é", "lower-case letters"),
            ("..", "lower-case letters"),
            ("a/b", "not a path"),
            ("/a", "not a path"),
            ("a\\b", "not a path"),
            ("fn", "choose another"),
            ("serde-json", "choose another"),
        ] {
            let error = bad.parse::<ProjectName>().expect_err(bad);
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn every_template_is_complete() {
        for template in Template::value_variants() {
            let dir = format!("templates/{template}");
            let files: Vec<_> = files_in(&dir).collect();
            for expected in ["Cargo.toml", "README.md", "corral.toml", "src/lib.rs"] {
                let found = files.iter().find(|(path, _)| *path == expected);
                let (_, text) = found.unwrap_or_else(|| panic!("{dir}/{expected}"));
                if expected == "src/lib.rs" {
                    assert!(text.contains("#[test]"), "{dir}");
                }
            }
        }
    }

    #[test]
    fn projects_of_other_languages_are_complete() {
        for (language, expected) in [
            (
                Language::Python,
                [
                    "app.py",
                    "test_app.py",
                    "requirements.txt",
                    "corral_sdk/__init__.py",
                    "corral_sdk/testing.py",
                ],
            ),
            (
                Language::JavaScript,
                [
                    "app.js",
                    "app.test.js",
                    "package.json",
                    "corral-sdk/build.js",
                    "corral-sdk/src/index.js",
                ],
            ),
            (
                Language::C,
                [
                    "plugin.c",
                    "README.md",
                    "corral-sdk/corral.h",
                    "corral-sdk/corral_json.h",
                    "corral-sdk/http.c",
                ],
            ),
            (
                Language::Go,
                [
                    "plugin.go",
                    "go.mod",
                    "corral-sdk/go.mod",
                    "corral-sdk/http.go",
                    "corral-sdk/wit/runtime/runtime.go",
                ],
            ),
        ] {
            let project = language.project().expect("a project");
            let mut sources = Vec::new();
            let templates = match language {
                Language::Go => vec![Template::Handler],
                _ => vec![Template::Handler, Template::Chat, Template::Job],
            };
            for &template in &templates {
                assert!(project.has(template), "{language:?} {template}");
                let dir = tempfile::tempdir().expect("a directory");
                let written = project.write(dir.path(), "shout", template);
                written.expect("written");
                for file in expected
                    .iter()
                    .chain(&["README.md", "corral.toml", ".gitignore"])
                {
                    let text = fs::read_to_string(dir.path().join(file));
                    let text = text.unwrap_or_else(|error| panic!("{language:?} {file}: {error}"));
                    let placeholders = ["{{name}}", "{{about}}", "{{data}}"];
                    let left = placeholders.iter().find(|word| text.contains(*word));
                    assert_eq!(left, None, "{language:?} {file}");
                }
                let source = fs::read_to_string(dir.path().join(expected[0]));
                sources.push(source.expect("readable"));
            }
            sources.dedup();
            assert_eq!(sources.len(), templates.len(), "{language:?}");
            let sdk = files_in(project.sdk).map(|(path, _)| path);
            for path in sdk {
                let is_for_checkouts = path.contains("tests") || path.contains("__pycache__");
                assert!(!is_for_checkouts, "{path}");
            }
        }
    }

    #[test]
    fn copied_sdk_is_complete() {
        let sdk: Vec<_> = files_in("sdk").collect();
        let text = |name: &str| {
            let found = sdk.iter().find(|(path, _)| *path == name);
            found.unwrap_or_else(|| panic!("{name}")).1
        };
        assert!(!text("src/bindings.rs").contains("../"), "a path outside");
        assert!(text("wit/corral-inference.wit").contains("package corral:inference"));
        let manifest = text("Cargo.toml");
        assert!(manifest.contains("[workspace.dependencies]"), "{manifest}");
        assert!(!manifest.contains("[[bench]]"), "{manifest}");
        assert!(file("Cargo.lock").contains("name = \"wit-bindgen\""));
        assert!(!file("Cargo.lock").contains("name = \"chat\""));
    }
}
