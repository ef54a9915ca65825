//! The programs, each with its plugin and its client.

use super::client::{Endpoint, ProgramClient};
use super::input::Input;
use super::sampling::{best_of_n, self_consistency};
use super::{
    batch_map, beam_search, classifier, react_agent, skeleton_of_thought, tree_of_thought,
};
use clap::ValueEnum;
use corral_cli::Error;
use corral_cli::terminal::printable;
use serde_json::Value;
use strum::IntoStaticStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "kebab-case")]
pub(super) enum Program {
    BestOfN,
    SelfConsistency,
    BeamSearch,
    TreeOfThought,
    Classifier,
    BatchMap,
    SkeletonOfThought,
    ReactAgent,
}

impl Program {
    /// The name of the example.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }

    /// The route of the plugin.
    pub(super) fn path(self) -> String {
        format!("/{}", self.name())
    }

    /// Whether the client has independent requests. The others ask for all answers by one request, or need each answer for
    /// the next request.
    pub(super) fn has_branches(self) -> bool {
        !matches!(
            self,
            Self::BestOfN | Self::SelfConsistency | Self::ReactAgent
        )
    }

    /// Completes the input before the time starts.
    pub(super) async fn prepare(self, input: Input, endpoint: &Endpoint) -> Result<Input, Error> {
        match self {
            Self::ReactAgent => react_agent::prepare(input, endpoint).await,
            _ => Ok(input),
        }
    }

    /// The body of a request to the plugin.
    pub(super) fn request(self, input: &Input) -> Value {
        match self {
            Self::BestOfN => best_of_n::request(input),
            Self::SelfConsistency => self_consistency::request(input),
            Self::BeamSearch => beam_search::request(input),
            Self::TreeOfThought => tree_of_thought::request(input),
            Self::Classifier => classifier::request(input),
            Self::BatchMap => batch_map::request(input),
            Self::SkeletonOfThought => skeleton_of_thought::request(input),
            Self::ReactAgent => react_agent::request(input),
        }
    }

    /// Runs the program as a client; returns the number of its steps: answers, thoughts or distributions.
    pub(super) async fn run(self, client: ProgramClient, input: Input) -> Result<u64, Error> {
        match self {
            Self::BestOfN => best_of_n::run(client, input).await,
            Self::SelfConsistency => self_consistency::run(client, input).await,
            Self::BeamSearch => beam_search::run(client, input).await,
            Self::TreeOfThought => tree_of_thought::run(client, input).await,
            Self::Classifier => classifier::run(client, input).await,
            Self::BatchMap => batch_map::run(client, input).await,
            Self::SkeletonOfThought => skeleton_of_thought::run(client, input).await,
            Self::ReactAgent => react_agent::run(client, input).await,
        }
    }

    /// The number of steps in a response of the plugin.
    pub(super) fn steps(self, response: &[u8]) -> Result<u64, Error> {
        let text = String::from_utf8_lossy(response);
        if self == Self::BatchMap {
            let texts = text.lines().filter(|line| line.contains("\"text\":"));
            return Ok(texts.count() as u64);
        }
        let value: Value = serde_json::from_str(&text)?;
        let length = |name: &str| value[name].as_array().map(|list| list.len() as u64);
        let steps = match self {
            Self::BestOfN | Self::ReactAgent => length("answers"),
            Self::SelfConsistency => value["samples"].as_u64(),
            Self::BeamSearch => value["distributions"].as_u64(),
            Self::TreeOfThought => value["thoughts"].as_u64(),
            Self::Classifier => length("labels"),
            Self::SkeletonOfThought => length("points"),
            Self::BatchMap => None,
        };
        steps.ok_or_else(|| {
            let text: String = text.chars().take(400).collect();
            let (name, text) = (self.name(), printable(&text));
            Error::failed(format!("is {name}.wasm another plugin? it answered {text}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_options() {
        for program in Program::value_variants() {
            let value = program.to_possible_value().expect("not skipped");
            assert_eq!(value.get_name(), program.name());
        }
    }

    #[test]
    fn steps_are_counted() {
        let steps = |program: Program, text: &str| program.steps(text.as_bytes()).ok();
        assert_eq!(steps(Program::BestOfN, r#"{"answers":[1,2]}"#), Some(2));
        let lines = "{\"index\":0,\"text\":\"a\"}\n{\"index\":1,\"error\":\"b\"}\n";
        assert_eq!(steps(Program::BatchMap, lines), Some(1));
        assert_eq!(steps(Program::TreeOfThought, "{}"), None);
    }
}
