//! Texts that are told at once.

use corral_sdk::{Error, Finish, Response};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::scores::Echo;
use crate::asking::{Choices, Likely, Token};
use crate::identity::{now, unique};
use crate::written::{self, List, Members, Whole};

/// How texts are told.
pub struct Told {
    /// Whether to tell how likely tokens were, and how many of the likeliest.
    pub likely: Option<u8>,
    /// Texts of each prompt.
    pub each: usize,
    /// What each prompt's texts begin with; nothing at all, if with nothing.
    pub echo: Vec<Echo>,
}

impl Told {
    /// What a text begins with.
    pub fn beginning(&self, index: usize) -> Option<&Echo> {
        self.echo.get(index / self.each)
    }

    /// A text, whole if it has its beginning, otherwise a piece of what comes after that.
    pub fn choice<'a>(
        &'a self,
        index: usize,
        text: &'a str,
        beginning: &'a [Likely],
        likely: &'a [Likely],
        finish: Option<Finish>,
    ) -> Choice<'a> {
        let before = self.beginning(index).map_or(0, |echo| echo.characters);
        Choice {
            index,
            text,
            logprobs: self.likely.map(|top| Logprobs {
                beginning,
                likely,
                before,
                top,
            }),
            finish_reason: finish.map(|finish| match finish {
                Finish::End | Finish::Stop => "stop",
                Finish::Length => "length",
            }),
        }
    }
}

/// A text or a piece of one.
#[derive(Serialize)]
pub struct Choice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// Waits for all of it.
pub async fn whole(mut choices: Choices, told: &Told) -> Result<Response, Error> {
    choices.at_once();
    let beginnings: Vec<_> = (0..choices.len())
        .map(|index| told.beginning(index))
        .collect();
    let texts = beginnings.iter();
    let mut texts: Vec<_> = texts
        .map(|echo| echo.map_or_else(String::new, |echo| echo.text.clone()))
        .collect();
    let mut likely = vec![Vec::new(); texts.len()];
    let mut finish = vec![None; texts.len()];
    while let Some(piece) = choices.next().await? {
        texts[piece.index] += &piece.text;
        likely[piece.index].extend(piece.likely);
        finish[piece.index] = piece.end.map(|end| end.finish);
    }
    let all = beginnings.iter().enumerate().map(|(at, echo)| {
        let beginning = echo.map_or(&[][..], |echo| &echo.likely);
        told.choice(at, &texts[at], beginning, &likely[at], finish[at])
    });
    written::answer(&Whole {
        id: unique("cmpl-"),
        object: "text_completion",
        created: now(),
        model: choices.model().name(),
        choices: all.collect(),
        usage: choices.usage().to_json(),
    })
}

/// How likely the tokens of a text were, in the shape of this older API: lists side by side. Written token
/// by token, since of a long text it is by far the most.
pub struct Logprobs<'a> {
    /// Those that the text begins with.
    beginning: &'a [Likely],
    likely: &'a [Likely],
    /// Characters that come before `likely`.
    before: usize,
    /// How many of the likeliest are told.
    top: u8,
}

impl Serialize for Logprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = || self.beginning.iter().chain(self.likely);
        let offsets = || {
            let beginning = self.beginning.iter().map(|likely| likely.offset);
            let likely = self.likely.iter();
            beginning.chain(likely.map(|likely| self.before + likely.offset))
        };
        let top = List(|| all().map(top));
        let mut members = serializer.serialize_struct("logprobs", 4)?;
        members.serialize_field("tokens", &List(|| all().map(|likely| likely.token.text())))?;
        members.serialize_field(
            "token_logprobs",
            &List(|| all().map(|likely| likely.token.logarithm())),
        )?;
        members.serialize_field("top_logprobs", &(self.top > 0).then_some(top))?;
        members.serialize_field("text_offset", &List(offsets))?;
        members.end()
    }
}

/// The likeliest tokens in one's place, and itself after them if it is not among them; nothing where nothing
/// is known of it. Of tokens with the same text the likelier one is told.
fn top(likely: &Likely) -> Option<impl Serialize> {
    likely.token.logprob?;
    let is_first = |at: usize, token: &Token| {
        let text = token.text();
        likely.top[..at].iter().all(|other| other.text() != text)
    };
    Some(Members(move || {
        let all = likely.top.iter().chain([&likely.token]).enumerate();
        let first = all.filter(move |(at, token)| is_first(*at, token));
        first.map(|(_, token)| (token.text(), token.logarithm()))
    }))
}
