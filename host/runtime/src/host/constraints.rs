//! `corral:inference/constraints`.

use super::bindings::corral::inference::constraints::{
    Grammar, Host, HostConstraint, HostConstraintWithStore,
};
use super::{Model, take, wit};
use crate::state::State;
use wasmtime::component::{Accessor, HasSelf, Resource};

type Answer<T> = wasmtime::Result<Result<T, wit::Error>>;

/// A compiled grammar that a guest holds.
pub struct Constraint(pub(super) corral_engine::Constraint);

impl Host for State {}

impl HostConstraintWithStore<State> for HasSelf<State> {
    async fn compile(
        store: &Accessor<State, Self>,
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
        let engine = store.with(|mut access| {
            let state = access.get();
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
        store.with(|mut access| {
            let state = access.get();
            match compiled {
                Ok(compiled) => Ok(Ok(state.table.push(Constraint(compiled))?)),
                Err(error) => {
                    state.handles.constraints -= 1;
                    Ok(Err(error.into()))
                }
            }
        })
    }
}

impl HostConstraint for State {
    fn drop(&mut self, constraint: Resource<Constraint>) -> wasmtime::Result<()> {
        self.table.delete(constraint)?;
        self.handles.constraints -= 1;
        Ok(())
    }
}
