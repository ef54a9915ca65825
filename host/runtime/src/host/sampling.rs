//! `sample-with`.

use super::store_access::StoreAccess;
use super::{GuestOptions, HostError, HostResult, wit};
use crate::sampling::UncheckedSampler;
use crate::state::State;
use std::sync::Arc;
use wasmtime::component::Resource;

/// Longest settings, in bytes.
const MAX_SETTINGS_BYTES: usize = 64 << 10;

/// Checks a sampling plugin's settings and sets it as the options' sampler.
pub(super) async fn sample_with(
    mut store: impl StoreAccess,
    options: Resource<GuestOptions>,
    name: String,
    settings: String,
) -> HostResult<()> {
    let lock = store.with(|state| {
        let check = &mut state.handles.sampler_check;
        Arc::clone(check.get_or_insert_default())
    });
    // One check at a time, so that an instance holds at most one check permit.
    let _lock = lock.lock_owned().await;
    let (sampler, vocabulary) = store.with(|state| {
        state.table.get(&options)?.check_no_samplers()?;
        Ok::<_, HostError>(state.unchecked_sampler(name, settings)?)
    })?;
    let sampler = sampler.check(vocabulary).await?;
    store.with(|state| {
        let changed = state.table.get_mut(&options)?;
        // The guest may have added samplers meanwhile.
        changed.check_no_samplers()?;
        changed.set_sampling_plugin(sampler);
        state.count_option_bytes(&options)
    })
}

impl State {
    /// The named sampling plugin, and the vocabulary of the model that was opened last, for which the
    /// settings are probably meant.
    fn unchecked_sampler(
        &mut self,
        name: String,
        settings: String,
    ) -> Result<(UncheckedSampler, u32), wit::Error> {
        let samplers = &self.grants.samplers;
        let Some(plugin) = samplers.get(&name) else {
            let name: String = name.chars().take(64).collect();
            let known: Vec<_> = samplers.keys().map(String::as_str).collect();
            let known = match known.len() {
                0 => "none is linked to this deployment".to_owned(),
                _ => format!("there is: {}", known.join(", ")),
            };
            return Err(wit::Error::NotFound(format!(
                "there is no sampling plugin {name:?}; {known}"
            )));
        };
        if settings.len() > MAX_SETTINGS_BYTES {
            return Err(wit::Error::Invalid(format!(
                "the sampler's settings have {} bytes; they may have {MAX_SETTINGS_BYTES}",
                settings.len()
            )));
        }
        let plugin = plugin.clone();
        let last = self.leases.last();
        let vocabulary = last.map_or(0, |lease| lease.info().vocabulary);
        let sampler = UncheckedSampler::new(self, name, plugin, settings);
        Ok((sampler, vocabulary))
    }
}
