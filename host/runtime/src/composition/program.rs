//! Programs: a plugin, and a component that answers its imports of `corral:inference` outside a Corral host, as one component
//! for any WebAssembly runtime. Nothing here runs or compiles it.
//!
//! Unlike a linked component, the provider is trusted: it sees the program's environment and network. It keeps imports of
//! its own, whose names differ from the plugin's by the build metadata of the version, which runtimes ignore
//! (`wasi:io/streams@0.2.6+provider`).

use super::encode::{LinkedPart, Part, encode};
use super::world::World;
use crate::interfaces::compatible;
use std::collections::BTreeMap;
use wasmparser::{BinaryReaderError, Validator, WasmFeatures};

/// Begins a setting in a component: see `SettingSlot` in the crate `provider` of the plugins.
const SETTING_MARKER: &[u8; 24] = b"corral-setting-slot-v1:\n";
/// Largest program, in bytes.
const MAX_PROGRAM: usize = 256 << 20;
/// Imports that must not be left to the runtime.
const CORRAL: &str = "corral:";

/// Why components do not form a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A part is no component, or not a valid one.
    #[error("{part} is not a valid component: {cause}")]
    NotAComponent {
        /// The part's name.
        part: String,
        /// The parser's message.
        cause: String,
    },
    /// Imports that no part answers, and no other runtime than Corral offers.
    #[error(
        "{part} imports {}, which no component of the program answers; only a Corral host does, with a linked component",
        .imports.join(", ")
    )]
    Unanswered {
        /// The part's name.
        part: String,
        /// The imports.
        imports: Vec<String>,
    },
    /// The plugin imports nothing that a part answers.
    #[error("{part} imports nothing of corral:inference; it needs no composition")]
    NothingToAnswer {
        /// The plugin's name.
        part: String,
    },
    /// The parts cannot be encoded.
    #[error("the components cannot be composed: {0}")]
    Encode(String),
    /// The parts are valid alone, but not together.
    #[error(
        "{plugin} and {provider} do not fit together: {cause}; build the plugin with the WIT files of this version of Corral"
    )]
    Mismatch {
        /// The plugin's name.
        plugin: String,
        /// The provider's name.
        provider: String,
        /// What does not fit.
        cause: String,
    },
    /// A component without room for a setting.
    #[error("the component has no room for a setting; it is not one of this version of Corral")]
    NoSetting,
    /// A setting that is too long.
    #[error("the setting has {length} bytes; the component has room for {room}")]
    SettingTooLong {
        /// Bytes of the setting.
        length: usize,
        /// Bytes that the component has for it.
        room: usize,
    },
}

/// Composes a plugin with a component that answers its imports. Each is a name for messages and the bytes. The program
/// exports what the plugin does, and is valid.
pub fn compose_program(
    (provider_name, provider): (&str, &[u8]),
    (plugin_name, plugin): (&str, &[u8]),
) -> Result<Vec<u8>, ProgramError> {
    let provider_world = read(provider_name, provider)?;
    let plugin_world = read(plugin_name, plugin)?;
    let own_name = |import: &String| {
        let own = format!("{import}{}provider", joint(import));
        (import.clone(), own)
    };
    let provider_part = Part {
        bytes: provider,
        imports: provider_world.imports.iter().map(own_name).collect(),
    };
    let exports = &provider_world.exports;
    let export_for = |import: &String| {
        let mut exports = exports.iter();
        exports.find(|export| compatible(export) == compatible(import))
    };
    let answers = plugin_world.imports.iter().filter_map(|import| {
        let export = export_for(import)?.clone();
        Some((import.clone(), export))
    });
    let answers = BTreeMap::from_iter(answers);
    if answers.is_empty() {
        let part = plugin_name.to_owned();
        return Err(ProgramError::NothingToAnswer { part });
    }
    let imports = plugin_world.imports.iter();
    let others = imports.filter(|import| export_for(import).is_none());
    let (unanswered, imports): (Vec<_>, Vec<_>) = others
        .cloned()
        .partition(|import| import.starts_with(CORRAL));
    if !unanswered.is_empty() {
        return Err(ProgramError::Unanswered {
            part: plugin_name.to_owned(),
            imports: unanswered,
        });
    }
    let imports = imports.into_iter().map(|import| (import.clone(), import));
    let plugin_part = Part {
        bytes: plugin,
        imports: imports.collect(),
    };
    let provider_part = LinkedPart {
        part: provider_part,
        answers,
    };
    let exports = &plugin_world.exports;
    let program = encode(&plugin_part, &[provider_part], None, exports, MAX_PROGRAM)
        .map_err(|error| ProgramError::Encode(error.to_string()))?;
    let Err(cause) = validate(&program) else {
        return Ok(program);
    };
    for (part, bytes) in [(plugin_name, plugin), (provider_name, provider)] {
        validate(bytes).map_err(|error| not_a_component(part, &error))?;
    }
    Err(ProgramError::Mismatch {
        plugin: plugin_name.to_owned(),
        provider: provider_name.to_owned(),
        cause: cause.to_string(),
    })
}

fn read(part: &str, component: &[u8]) -> Result<World, ProgramError> {
    World::read(component).map_err(|error| not_a_component(part, &error))
}

fn not_a_component(part: &str, error: &BinaryReaderError) -> ProgramError {
    ProgramError::NotAComponent {
        part: part.to_owned(),
        cause: error.to_string(),
    }
}

/// Checks a component as a runtime does that knows all proposals of WebAssembly.
pub(crate) fn validate(component: &[u8]) -> Result<(), BinaryReaderError> {
    let mut validator = Validator::new_with_features(WasmFeatures::all());
    validator.validate_all(component).map(drop)
}

/// What begins or continues the build metadata of an import's version.
fn joint(import: &str) -> &'static str {
    match import.split_once('@') {
        None => "@0.0.0+",
        Some((_, version)) if version.contains('+') => ".",
        Some(_) => "+",
    }
}

/// Writes a text into the place that a component has for a setting.
pub fn write_setting(component: &mut [u8], text: &str) -> Result<(), ProgramError> {
    let mut windows = component.windows(SETTING_MARKER.len());
    let marker = windows.position(|window| window == SETTING_MARKER);
    let slot = marker.ok_or(ProgramError::NoSetting)? + SETTING_MARKER.len();
    let slot = component.get_mut(slot..).unwrap_or_default();
    let Some((room, slot)) = slot.split_first_chunk_mut() else {
        return Err(ProgramError::NoSetting);
    };
    let (Some((length, slot)), Ok(room)) = (
        slot.split_first_chunk_mut::<4>(),
        usize::try_from(u32::from_le_bytes(*room)),
    ) else {
        return Err(ProgramError::NoSetting);
    };
    let slot = slot.get_mut(..room).ok_or(ProgramError::NoSetting)?;
    let too_long = ProgramError::SettingTooLong {
        length: text.len(),
        room,
    };
    let place = slot.get_mut(..text.len()).ok_or(too_long)?;
    place.copy_from_slice(text.as_bytes());
    // The room's length is a u32.
    *length = u32::try_from(text.len()).unwrap_or_default().to_le_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVIDER: &str = r#"(component
        (import "wasi:io/error@0.2.0" (instance $io (export "f" (func))))
        (instance $models (export "f" (func $io "f")))
        (export "corral:inference/models@0.1.0" (instance $models))
    )"#;
    const PLUGIN: &str = r#"(component
        (import "corral:inference/models@0.1.0" (instance $models (export "f" (func))))
        (import "wasi:io/error@0.2.0" (instance $io (export "f" (func))))
        (instance $run (export "run" (func $models "f")))
        (export "wasi:cli/run@0.3.0" (instance $run))
    )"#;

    fn compose(plugin: &str) -> Result<Vec<u8>, ProgramError> {
        let provider = wat::parse_str(PROVIDER).unwrap();
        let plugin = wat::parse_str(plugin).unwrap();
        compose_program(("provider", &provider), ("plugin", &plugin))
    }

    #[test]
    fn provider_answers_the_plugin() {
        let program = compose(PLUGIN).unwrap();
        let world = World::read(&program).unwrap();
        let imports = ["wasi:io/error@0.2.0+provider", "wasi:io/error@0.2.0"];
        assert_eq!(world.imports, imports);
        assert_eq!(world.exports, ["wasi:cli/run@0.3.0"]);
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let other = PLUGIN.replacen("(func)", "(func (result u32))", 1);
        let error = compose(&other).unwrap_err().to_string();
        assert!(
            error.starts_with("plugin and provider do not fit together: "),
            "{error}"
        );
        let invalid = PLUGIN.replace(r#"$models "f""#, r#"$models "g""#);
        let error = compose(&invalid).unwrap_err();
        assert!(
            matches!(&error, ProgramError::NotAComponent { part, .. } if part == "plugin"),
            "{error}"
        );
        // The provider's own import would get the same name.
        let same = PLUGIN.replace("wasi:io/error@0.2.0", "wasi:io/error@0.2.0+provider");
        let error = compose(&same).unwrap_err().to_string();
        assert!(
            error.contains("need the import 'wasi:io/error@0.2.0+provider' twice"),
            "{error}"
        );
    }

    #[test]
    fn unanswered_import_is_refused() {
        let plugin = r#"(component
            (import "corral:inference/models@0.1.2" (instance (export "f" (func))))
            (import "corral:plugin/templating@0.1.0" (instance)))"#;
        let error = compose(plugin).unwrap_err().to_string();
        assert!(
            error.contains("plugin imports corral:plugin/templating@0.1.0, which"),
            "{error}"
        );
        let error = compose("(component)").unwrap_err();
        assert!(
            matches!(error, ProgramError::NothingToAnswer { .. }),
            "{error}"
        );
        let error = compose_program(("text", b"text"), ("text", b"text")).unwrap_err();
        assert!(
            matches!(error, ProgramError::NotAComponent { .. }),
            "{error}"
        );
    }

    #[test]
    fn setting_fits_into_its_place() {
        let mut component = b"before".to_vec();
        component.extend(SETTING_MARKER);
        component.extend(5_u32.to_le_bytes());
        component.extend([0; 4 + 5]);
        component.extend(b"after");
        let mut written = component.clone();
        write_setting(&mut written, "12345").unwrap();
        assert!(written.ends_with(b"\x05\0\0\x0012345after"));
        assert_eq!(written.len(), component.len());
        let error = write_setting(&mut component, "123456").unwrap_err();
        assert!(
            matches!(error, ProgramError::SettingTooLong { length: 6, room: 5 }),
            "{error}"
        );
        for short in [
            "",
            "corral-setting-slot-v1:\n",
            "corral-setting-slot-v1:\n\u{1}\0\0\0\0\0\0\0",
        ] {
            let error = write_setting(&mut short.as_bytes().to_vec(), "").unwrap_err();
            assert!(matches!(error, ProgramError::NoSetting), "{error}");
        }
    }
}
