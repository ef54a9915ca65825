//! The stages and their order.

use corral_cli::Error;

/// A stage adds one layer to the stage below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) number: u8,
    pub(super) name: &'static str,
    /// The stage below it.
    pub(super) below: Option<u8>,
    /// The name of the plugin that it needs.
    pub(super) plugin: Option<&'static str>,
}

const fn stage(
    number: u8,
    name: &'static str,
    below: Option<u8>,
    plugin: Option<&'static str>,
) -> Stage {
    Stage {
        number,
        name,
        below,
        plugin,
    }
}

/// llama.cpp alone.
pub(super) const RAW: u8 = 0;
/// The first stage with clients, whose requests have different lengths.
pub(super) const CLIENTS: u8 = 3;
/// Stages before which the raw loop with clients is measured, so that the two are close in time.
pub(super) const AFTER_RAW_LOOP: [u8; 2] = [4, 7];

pub(super) const STAGES: [Stage; 10] = [
    stage(RAW, "raw llama_decode", None, None),
    stage(1, "engine, no sampling", Some(0), None),
    stage(2, "engine, sampling and text", Some(1), None),
    stage(CLIENTS, "scheduler, out of step", Some(2), None),
    stage(4, "plugin, host's loop", Some(2), Some("measure")),
    stage(5, "plugin's loop, top 64", Some(4), Some("measure")),
    stage(6, "plugin's loop, full logits", Some(5), Some("measure")),
    stage(7, "HTTP in process", Some(4), Some("generate")),
    stage(8, "HTTP over TCP", Some(7), Some("generate")),
    stage(9, "SSE over TCP, openai", Some(8), Some("openai")),
];

/// The `requested` stages in order, or all whose plugins exist. Stage 0 is always among them, as the reference.
pub(super) fn choose(requested: &[u8], has_plugins: bool) -> Result<Vec<Stage>, Error> {
    let wanted = |stage: &&Stage| match requested {
        [] => has_plugins || stage.plugin.is_none(),
        some => stage.number == RAW || some.contains(&stage.number),
    };
    let chosen: Vec<_> = STAGES.iter().filter(wanted).copied().collect();
    let lacks_plugin = |stage: &&Stage| stage.plugin.is_some() && !has_plugins;
    if let Some(stage) = chosen.iter().find(lacks_plugin) {
        return Err(Error::usage(format!(
            "stage {} needs plugins; give --plugins a directory with measure.wasm, generate.wasm \
             and openai.wasm, or choose among --stages 0,1,2,3",
            stage.number
        )));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(requested: &[u8], has_plugins: bool) -> Vec<u8> {
        let chosen = choose(requested, has_plugins).expect("valid stages");
        chosen.iter().map(|stage| stage.number).collect()
    }

    #[test]
    fn stages_build_on_lower_ones() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert_eq!(usize::from(stage.number), index);
            assert!(stage.below.is_none_or(|below| below < stage.number));
        }
    }

    #[test]
    fn stage_0_is_always_chosen() {
        assert_eq!(numbers(&[], false), [0, 1, 2, 3]);
        assert_eq!(numbers(&[], true), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(numbers(&[9, 2, 2], true), [0, 2, 9]);
        let error = choose(&[7], false).expect_err("no plugin");
        let message = error.message(false);
        assert!(message.contains("stage 7 needs plugins"), "{message}");
    }
}
