//! `corral:inference/constraints`.

use super::bindings::corral::inference::constraints::{
    Grammar, Host, HostConstraint, HostMatcher, Token,
};
use super::store_access::StoreAccess;
use super::{GuestModel, HostError, HostResult, MAX_MATCHERS, take_handle, take_handle_of};
use crate::counters::ResourceKind;
use crate::state::State;
use corral_engine::{Engine, Error};
use wasmtime::component::Resource;

/// A compiled grammar that a guest holds.
pub struct GuestConstraint(pub(super) corral_engine::Constraint);

impl Host for State {}

pub(super) async fn compile(
    mut store: impl StoreAccess,
    model: Resource<GuestModel>,
    grammar: Grammar,
) -> HostResult<Resource<GuestConstraint>> {
    let grammar = match grammar {
        Grammar::JsonSchema(text) => corral_engine::Grammar::JsonSchema(text),
        Grammar::LenientJsonSchema(text) => corral_engine::Grammar::LenientJsonSchema(text),
        Grammar::JsonObject => corral_engine::Grammar::JsonObject,
        Grammar::Regex(text) => corral_engine::Grammar::Regex(text),
        Grammar::Lark(text) => corral_engine::Grammar::Lark(text),
        Grammar::Gbnf(text) => corral_engine::Grammar::Gbnf(text),
    };
    // Take the handle before waiting, so that an instance compiles no more grammars than it may hold.
    let (engine, tenant) = store.with(|state| {
        let engine = state.table.get(&model)?.0.clone();
        take_handle(&mut state.handles, ResourceKind::Constraints, "constraints")?;
        Ok::<_, HostError>((engine, state.caller.tenant))
    })?;
    let compiled = match engine.compiled_grammar(&grammar) {
        Some(compiled) => Ok(compiled),
        // Blocks on the compiler thread.
        None => tokio::task::spawn_blocking(move || engine.compile(tenant, &grammar)).await?,
    };
    store.with(|state| match compiled {
        Ok(compiled) => Ok(state.table.push(GuestConstraint(compiled))?),
        Err(error) => {
            state.handles.counts.remove(ResourceKind::Constraints, 1);
            Err(error.into())
        }
    })
}

impl HostConstraint for State {
    fn ignored(&mut self, constraint: Resource<GuestConstraint>) -> wasmtime::Result<Vec<String>> {
        Ok(self.table.get(&constraint)?.0.ignored().to_vec())
    }

    fn drop(&mut self, constraint: Resource<GuestConstraint>) -> wasmtime::Result<()> {
        self.table.delete(constraint)?;
        self.handles.counts.remove(ResourceKind::Constraints, 1);
        Ok(())
    }
}

/// Tracks which tokens a constraint allows next, for guests that run their own loop.
pub struct GuestMatcher {
    matcher: corral_engine::Matcher,
    constraint: corral_engine::Constraint,
}

impl GuestMatcher {
    /// Bit mask of the allowed tokens, for a sequence of `engine`.
    pub(super) fn mask_for(&mut self, engine: &Engine) -> Result<Vec<u32>, Error> {
        engine.check_constraint(&self.constraint)?;
        Ok(self.matcher.mask()?.to_vec())
    }
}

impl State {
    fn matcher(
        &mut self,
        matcher: &Resource<GuestMatcher>,
    ) -> wasmtime::Result<&mut corral_engine::Matcher> {
        Ok(&mut self.table.get_mut(matcher)?.matcher)
    }

    fn add_matcher(&mut self, matcher: GuestMatcher) -> HostResult<Resource<GuestMatcher>> {
        take_handle_of(
            MAX_MATCHERS,
            &mut self.handles,
            ResourceKind::Matchers,
            "matchers",
        )?;
        Ok(self.table.push(matcher)?)
    }
}

impl HostMatcher for State {
    fn start(
        &mut self,
        constraint: Resource<GuestConstraint>,
    ) -> HostResult<Resource<GuestMatcher>> {
        let constraint = self.table.get(&constraint)?.0.clone();
        self.add_matcher(GuestMatcher {
            matcher: constraint.start(self.caller.tenant.0),
            constraint,
        })
    }

    fn fork(&mut self, matcher: Resource<GuestMatcher>) -> HostResult<Resource<GuestMatcher>> {
        let original = self.table.get_mut(&matcher)?;
        let fork = GuestMatcher {
            matcher: original.matcher.fork()?,
            constraint: original.constraint.clone(),
        };
        self.add_matcher(fork)
    }

    fn mask(&mut self, matcher: Resource<GuestMatcher>) -> HostResult<Vec<u32>> {
        Ok(self.matcher(&matcher)?.mask()?.to_vec())
    }

    fn allowed(
        &mut self,
        matcher: Resource<GuestMatcher>,
        max_tokens: u32,
    ) -> HostResult<Option<Vec<Token>>> {
        let mask = self.matcher(&matcher)?.mask()?;
        let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
        if count > max_tokens {
            return Ok(None);
        }
        let tokens = (0..).zip(mask).flat_map(|(index, word)| {
            let bits = (0..u32::BITS).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| index * u32::BITS + bit)
        });
        Ok(Some(tokens.collect()))
    }

    fn allows(&mut self, matcher: Resource<GuestMatcher>, token: Token) -> HostResult<bool> {
        Ok(self.matcher(&matcher)?.allows(token)?)
    }

    fn accept(&mut self, matcher: Resource<GuestMatcher>, token: Token) -> HostResult<()> {
        Ok(self.matcher(&matcher)?.advance(token)?)
    }

    fn forced(
        &mut self,
        matcher: Resource<GuestMatcher>,
        max_tokens: u32,
    ) -> HostResult<Vec<Token>> {
        Ok(self.matcher(&matcher)?.forced(max_tokens as usize)?)
    }

    fn is_complete(&mut self, matcher: Resource<GuestMatcher>) -> wasmtime::Result<bool> {
        let matcher = self.matcher(&matcher)?;
        Ok(matcher.has_ended() || matcher.must_end())
    }

    fn drop(&mut self, matcher: Resource<GuestMatcher>) -> wasmtime::Result<()> {
        self.table.delete(matcher)?;
        self.handles.counts.remove(ResourceKind::Matchers, 1);
        Ok(())
    }
}
