//! The stages: what each is called, and what it stands on.

use crate::complaint::Complaint;

/// One stage. Each has what those below it have, and one thing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) number: u8,
    pub(super) name: &'static str,
    /// The stage that it adds something to.
    pub(super) below: Option<u8>,
    /// The plugin that it needs, without `.wasm`.
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

/// The stage that stands at the bottom of all.
pub(super) const RAW: u8 = 0;
/// The stage with requests of different lengths, from which on clients ask.
pub(super) const ARRIVALS: u8 = 3;
/// The stage that sends events.
pub(super) const EVENTS: u8 = 9;
/// Before these, the raw loop that clients ask is measured.
pub(super) const AGAIN: u8 = 4;
pub(super) const AGAIN_TOO: u8 = 7;

pub(super) const STAGES: [Stage; 10] = [
    stage(RAW, "raw llama_decode", None, None),
    stage(1, "engine, no sampling", Some(0), None),
    stage(2, "engine, sampling and text", Some(1), None),
    stage(ARRIVALS, "scheduler, out of step", Some(2), None),
    stage(4, "plugin, host's loop", Some(2), Some("measure")),
    stage(5, "plugin's loop, top 64", Some(4), Some("measure")),
    stage(6, "plugin's loop, full logits", Some(5), Some("measure")),
    stage(7, "HTTP in process", Some(4), Some("generate")),
    stage(8, "HTTP over TCP", Some(7), Some("generate")),
    stage(EVENTS, "SSE over TCP, openai", Some(8), Some("openai")),
];

/// Those that are `asked` for, in their order and each once; if none is, all for which there is what they
/// need. Stage 0 is always among them, since the others are measured beside it.
pub(super) fn chosen(asked: &[u8], has_plugins: bool) -> Result<Vec<Stage>, Complaint> {
    let wanted = |stage: &&Stage| match asked {
        [] => has_plugins || stage.plugin.is_none(),
        some => stage.number == RAW || some.contains(&stage.number),
    };
    let chosen: Vec<_> = STAGES.iter().filter(wanted).copied().collect();
    let lacks = |stage: &&Stage| stage.plugin.is_some() && !has_plugins;
    if let Some(stage) = chosen.iter().find(lacks) {
        return Err(Complaint::Usage(format!(
            "stage {} needs plugins; give --plugins with a folder that has measure.wasm, generate.wasm \
             and openai.wasm, or choose among --stages 0,1,2,3",
            stage.number
        )));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(asked: &[u8], has_plugins: bool) -> Vec<u8> {
        let chosen = chosen(asked, has_plugins).expect("they can be measured");
        chosen.iter().map(|stage| stage.number).collect()
    }

    #[test]
    fn stages_are_numbered_and_stand_on_lower_ones() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert_eq!(usize::from(stage.number), index);
            assert!(stage.below.is_none_or(|below| below < stage.number));
        }
    }

    #[test]
    fn what_is_asked_for_is_measured_beside_stage_0() {
        assert_eq!(numbers(&[], false), [0, 1, 2, 3]);
        assert_eq!(numbers(&[], true), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(numbers(&[9, 2, 2], true), [0, 2, 9]);
        let Err(Complaint::Usage(text)) = chosen(&[7], false) else {
            panic!("there is no plugin");
        };
        assert!(text.contains("stage 7 needs plugins"), "{text}");
    }
}
