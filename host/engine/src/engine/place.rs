//! Puts a model where there is room for it: weights, adapters and the context, on devices and beside them.
//!
//! llama.cpp says only by failing that a device has no room. Where nobody asked for a number of layers, it is
//! tried with fewer then.

use crate::LoadError;
use crate::config::{Config, DEFAULT_CELLS, SEQ_IDS, STEP_TOKENS};
use crate::device_placement::PlacementPlan;
use corral_llama::{
    ContextSettings, DevicePlacement, DeviceTopK, LlamaContext, LlamaError, LoadProgress, Model,
    check_magic, take_buffer_sizes,
};
use corral_scheduler::AdapterId;
use std::path::PathBuf;
use std::sync::Arc;

/// A model in memory, with a context.
pub(super) struct Placed {
    pub model: Arc<Model>,
    pub backend: LlamaContext,
    pub settings: ContextSettings,
    /// Positions of a sequence.
    pub context: u32,
    pub buffers: Buffers,
}

/// What was taken of memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Buffers {
    /// Bytes of the machine's.
    pub here: u64,
    /// Bytes of devices with a memory of their own, by their names.
    pub apart: Vec<(String, u64)>,
}

/// Puts the model of the configuration into memory.
pub(super) fn place(config: &Config, progress: &LoadProgress) -> Result<Placed, LoadError> {
    check_magic(&config.path)?;
    let plan = PlacementPlan::new(config)?;
    let mut tries = plan.attempts().into_iter().peekable();
    loop {
        let layers = tries.next().unwrap_or(0);
        // Of what was tried before nothing is left.
        take_buffer_sizes();
        let error = match attempt(config, &plan, layers, progress) {
            Ok(placed) => return Ok(placed),
            Err(error) => error,
        };
        let out_of_memory = match &error {
            LoadError::Llama(error) => error.out_of_memory(),
            _ => None,
        };
        let Some(cause) = out_of_memory.filter(|_| layers > 0) else {
            return Err(error);
        };
        let Some(fewer) = tries.peek() else {
            return Err(plan.out_of_memory(&config.path, layers, cause.to_owned()));
        };
        tracing::warn!(
            model = config.name,
            layers,
            fewer,
            cause,
            "the layers found no room on their devices; trying fewer"
        );
    }
}

fn attempt(
    config: &Config,
    plan: &PlacementPlan,
    layers: u32,
    progress: &LoadProgress,
) -> Result<Placed, LoadError> {
    let mut model = Model::load(&config.path, plan.placement(layers), progress)?;
    load_adapters(&mut model, &config.adapters)?;
    let model = Arc::new(model);
    let context = config.context_for(model.trained_context().max(1))?;
    let cells = config.cells.unwrap_or(DEFAULT_CELLS.max(context));
    if cells < context {
        return Err(LoadError::Config(format!(
            "{cells} cells can't hold one sequence of {context} positions; \
             give at least as many cells as the context is long"
        )));
    }
    if !(1..=SEQ_IDS).contains(&config.sequences) {
        return Err(LoadError::Config(format!(
            "{} sequences at once were asked for; give a number from 1 to {SEQ_IDS}",
            config.sequences
        )));
    }
    let threads = config.threads.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
    });
    let mut places = take_buffer_sizes();
    let device_top_k = device_top_k(config, &model, cells);
    let settings = ContextSettings {
        cells,
        step_tokens: STEP_TOKENS,
        seq_ids: config.sequences + device_top_k.map_or(0, |top_k| top_k.seq_ids),
        threads,
        kv_type: config.placement.kv_type,
        device_top_k,
    };
    let backend = LlamaContext::new(model.clone(), settings)?;
    places.extend(take_buffer_sizes());
    let apart = plan.devices_with_memory();
    Ok(Placed {
        buffers: Buffers::of(places, model.placement(), &apart),
        model,
        backend,
        settings,
        context,
    })
}

/// For which ids the likeliest tokens are selected where the logits are: for as many as may run, beside
/// those that may run anyway, so that each sequence finds an id of either kind.
fn device_top_k(config: &Config, model: &Model, cells: u32) -> Option<DeviceTopK> {
    // Recurrent and hybrid models have a state for each id, and outputs that have to be put in order.
    let on_device = model.output_on_device() && model.can_fork();
    let vocabulary = u32::try_from(model.vocabulary_size()).unwrap_or(u32::MAX);
    let k = config.device_sampling.top_k(on_device, vocabulary)?;
    // llama.cpp ends the process if there are more ids than cells.
    let room = cells.saturating_sub(u32::from(config.sequences));
    let ids = u32::from(config.sequences).min(room);
    let ids = u16::try_from(ids).ok().filter(|ids| *ids > 0)?;
    Some(DeviceTopK { k, seq_ids: ids })
}

impl Buffers {
    /// Of what lies at each place, and devices of which those `apart` have a memory of their own.
    fn of(places: Vec<(String, u64)>, placement: &DevicePlacement, apart: &[&str]) -> Self {
        let mut buffers = Self::default();
        for (place, bytes) in places {
            // A device's memory is called like it, and so is what belongs to it: `MTL0_Mapped`.
            let is_of = |device: &&String| {
                let rest = place.strip_prefix(device.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            };
            let device = placement.devices.iter().find(is_of);
            let Some(device) = device.filter(|device| apart.contains(&device.as_str())) else {
                buffers.here = buffers.here.saturating_add(bytes);
                continue;
            };
            match buffers.apart.iter_mut().find(|(known, _)| known == device) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => buffers.apart.push((device.clone(), bytes)),
            }
        }
        buffers
    }
}

fn load_adapters(model: &mut Model, adapters: &[(String, PathBuf)]) -> Result<(), LoadError> {
    let most = usize::from(AdapterId::MAX);
    if adapters.len() > most {
        return Err(LoadError::Config(format!(
            "{} adapters were given; a model may have at most {most}",
            adapters.len()
        )));
    }
    for (index, (name, path)) in adapters.iter().enumerate() {
        let refused = |cause: &str| LlamaError::Adapter {
            name: name.clone(),
            path: path.clone(),
            cause: cause.to_owned(),
        };
        if name.is_empty() {
            return Err(refused("its name is empty; give it one").into());
        }
        if adapters[..index].iter().any(|(other, _)| other == name) {
            return Err(refused("another one has this name; give one of them another").into());
        }
        model.load_adapter(name, path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_devices_is_counted_apart_unless_it_is_the_machines() {
        let places = || {
            let place = |name: &str, bytes| (name.to_owned(), bytes);
            vec![
                place("CPU", 1),
                place("CPU_Mapped", 10),
                place("CUDA_Host", 100),
                place("CUDA1", 1000),
                place("CUDA10", 10_000),
                place("MTL0_Private", 100_000),
                place("MTL0", 1_000_000),
            ]
        };
        let placement = |devices: &[&str]| DevicePlacement {
            devices: devices.iter().map(|name| (*name).to_owned()).collect(),
            gpu_layers: 1,
        };
        let none = Buffers::of(places(), &DevicePlacement::default(), &[]);
        assert_eq!((none.here, none.apart.len()), (1_111_111, 0));
        let two = placement(&["CUDA1", "MTL0"]);
        let both = Buffers::of(places(), &two, &["CUDA1", "MTL0"]);
        assert_eq!(both.here, 10_111);
        let expected = [("CUDA1".to_owned(), 1000), ("MTL0".to_owned(), 1_100_000)];
        assert_eq!(both.apart, expected);
        let one = Buffers::of(places(), &two, &["CUDA1"]);
        assert_eq!((one.here, one.apart.len()), (1_110_111, 1));
    }
}
