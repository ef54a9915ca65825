//! `options.sample-with`.

use super::reach::Reach;
use super::{Answer, Options, wit};
use crate::sampling::Unchecked;
use crate::state::State;
use std::sync::Arc;
use wasmtime::component::Resource;

/// Longest settings, in bytes.
const SETTINGS_BYTES: usize = 64 << 10;

/// Lets a sampling plugin choose the tokens, once it has taken its settings.
pub(super) async fn sample_with(
    mut on: impl Reach,
    options: Resource<Options>,
    name: String,
    settings: String,
) -> Answer<()> {
    let turn = on.with(|state| Arc::clone(&state.handles.check));
    // One after the other, so that an instance holds one place with them.
    let _turn = turn.lock_owned().await;
    let begun = on.with(|state| {
        let options = state.table.get(&options)?;
        let begun = options.check_unsampled();
        Ok::<_, wasmtime::Error>(begun.and_then(|()| state.unchecked(name, settings)))
    })?;
    let (sampler, vocabulary) = match begun {
        Ok(begun) => begun,
        Err(error) => return Ok(Err(error)),
    };
    let linked = match sampler.check(vocabulary).await {
        Ok(linked) => linked,
        Err(error) => return Ok(Err(error.into())),
    };
    on.with(|state| {
        let options = state.table.get_mut(&options)?;
        // Some may have come meanwhile.
        Ok(options
            .check_unsampled()
            .map(|()| options.sample_with(linked)))
    })
}

impl State {
    /// The sampling plugin of this name, and the number of tokens of the model that its settings are
    /// probably meant for: the one that was opened last.
    fn unchecked(
        &mut self,
        name: String,
        settings: String,
    ) -> Result<(Unchecked, u32), wit::Error> {
        let Some(pre) = self.samplers.get(&name) else {
            let name: String = name.chars().take(64).collect();
            let have: Vec<_> = self.samplers.keys().map(String::as_str).collect();
            let have = match have.len() {
                0 => "none is linked to this deployment".to_owned(),
                _ => format!("there is: {}", have.join(", ")),
            };
            return Err(wit::Error::NotFound(format!(
                "there is no sampling plugin {name:?}; {have}"
            )));
        };
        if settings.len() > SETTINGS_BYTES {
            return Err(wit::Error::Invalid(format!(
                "the sampler's settings have {} bytes; they may have {SETTINGS_BYTES}",
                settings.len()
            )));
        }
        let pre = pre.clone();
        let last = self.leases.last();
        let vocabulary = last.map_or(0, |lease| lease.info().vocabulary);
        Ok((Unchecked::new(self, name, pre, settings), vocabulary))
    }
}
