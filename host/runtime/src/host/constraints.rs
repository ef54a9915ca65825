//! `corral:inference/constraints`.

use super::bindings::corral::inference::constraints::{
    Grammar, Host, HostConstraint, HostConstraintWithStore, HostMatcher, Token,
};
use super::reach::Reach;
use super::{Answer, MATCHERS, Model, take, take_of};
use crate::state::State;
use corral_engine::{Engine, Error};
use wasmtime::component::{Accessor, HasSelf, Resource};

/// A compiled grammar that a guest holds.
pub struct Constraint(pub(super) corral_engine::Constraint);

impl Host for State {}

impl HostConstraintWithStore<State> for HasSelf<State> {
    async fn compile(
        store: &Accessor<State, Self>,
        model: Resource<Model>,
        grammar: Grammar,
    ) -> Answer<Resource<Constraint>> {
        compile(store, model, grammar).await
    }
}

pub(super) async fn compile(
    mut on: impl Reach,
    model: Resource<Model>,
    grammar: Grammar,
) -> Answer<Resource<Constraint>> {
    let grammar = match grammar {
        Grammar::JsonSchema(text) => corral_engine::Grammar::JsonSchema(text),
        Grammar::JsonObject => corral_engine::Grammar::JsonObject,
        Grammar::Regex(text) => corral_engine::Grammar::Regex(text),
        Grammar::Lark(text) => corral_engine::Grammar::Lark(text),
        Grammar::Gbnf(text) => corral_engine::Grammar::Gbnf(text),
    };
    // Taken before it waits, so that as many compile as may be held.
    let engine = on.with(|state| {
        let engine = state.table.get(&model)?.0.clone();
        Ok::<_, wasmtime::Error>(
            take(&mut state.handles.constraints, "constraints").map(|()| engine),
        )
    })?;
    let engine = match engine {
        Ok(engine) => engine,
        Err(error) => return Ok(Err(error)),
    };
    let compiled = match engine.compiled(&grammar) {
        Some(found) => Ok(found),
        // It waits for the compiler's thread, which has a bound: not where others are turned.
        None => tokio::task::spawn_blocking(move || engine.compile(&grammar)).await?,
    };
    on.with(|state| match compiled {
        Ok(compiled) => Ok(Ok(state.table.push(Constraint(compiled))?)),
        Err(error) => {
            state.handles.constraints -= 1;
            Ok(Err(error.into()))
        }
    })
}

impl HostConstraint for State {
    fn drop(&mut self, constraint: Resource<Constraint>) -> wasmtime::Result<()> {
        self.table.delete(constraint)?;
        self.handles.constraints -= 1;
        Ok(())
    }
}

/// A text's way through a constraint, in a guest's hands.
pub struct Matcher {
    inner: corral_engine::Matcher,
    constraint: corral_engine::Constraint,
}

impl Matcher {
    /// What is allowed, for a sequence of this engine: a bit for each token.
    pub(super) fn mask_for(&mut self, engine: &Engine) -> Result<Vec<u32>, Error> {
        engine.check_made(&self.constraint)?;
        Ok(self.inner.mask()?.to_vec())
    }
}

impl State {
    fn matcher(&mut self, matcher: &Resource<Matcher>) -> wasmtime::Result<&mut Matcher> {
        Ok(self.table.get_mut(matcher)?)
    }

    fn add_matcher(&mut self, matcher: Matcher) -> Answer<Resource<Matcher>> {
        if let Err(error) = take_of(MATCHERS, &mut self.handles.matchers, "matchers") {
            return Ok(Err(error));
        }
        Ok(Ok(self.table.push(matcher)?))
    }
}

impl HostMatcher for State {
    fn start(&mut self, constraint: Resource<Constraint>) -> Answer<Resource<Matcher>> {
        let constraint = self.table.get(&constraint)?.0.clone();
        self.add_matcher(Matcher {
            inner: constraint.start(),
            constraint,
        })
    }

    fn fork(&mut self, matcher: Resource<Matcher>) -> Answer<Resource<Matcher>> {
        let matcher = self.matcher(&matcher)?;
        match matcher.inner.fork() {
            Ok(inner) => {
                let constraint = matcher.constraint.clone();
                self.add_matcher(Matcher { inner, constraint })
            }
            Err(error) => Ok(Err(error.into())),
        }
    }

    fn mask(&mut self, matcher: Resource<Matcher>) -> Answer<Vec<u32>> {
        let mask = self.matcher(&matcher)?.inner.mask();
        Ok(mask.map(<[u32]>::to_vec).map_err(Into::into))
    }

    fn allowed(&mut self, matcher: Resource<Matcher>, most: u32) -> Answer<Option<Vec<Token>>> {
        let mask = match self.matcher(&matcher)?.inner.mask() {
            Ok(mask) => mask,
            Err(error) => return Ok(Err(error.into())),
        };
        let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
        if count > most {
            return Ok(Ok(None));
        }
        let bits = (0..).zip(mask).flat_map(|(index, word)| {
            let set = (0..u32::BITS).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| index * u32::BITS + bit)
        });
        Ok(Ok(Some(bits.collect())))
    }

    fn allows(&mut self, matcher: Resource<Matcher>, token: Token) -> Answer<bool> {
        let allows = self.matcher(&matcher)?.inner.allows(token);
        Ok(allows.map_err(Into::into))
    }

    fn accept(&mut self, matcher: Resource<Matcher>, token: Token) -> Answer<()> {
        let accepted = self.matcher(&matcher)?.inner.advance(token);
        Ok(accepted.map_err(Into::into))
    }

    fn forced(&mut self, matcher: Resource<Matcher>, most: u32) -> Answer<Vec<Token>> {
        let forced = self.matcher(&matcher)?.inner.forced(most as usize);
        Ok(forced.map_err(Into::into))
    }

    fn is_complete(&mut self, matcher: Resource<Matcher>) -> wasmtime::Result<bool> {
        let matcher = &self.matcher(&matcher)?.inner;
        Ok(matcher.has_ended() || matcher.must_end())
    }

    fn drop(&mut self, matcher: Resource<Matcher>) -> wasmtime::Result<()> {
        self.table.delete(matcher)?;
        self.handles.matchers -= 1;
        Ok(())
    }
}
