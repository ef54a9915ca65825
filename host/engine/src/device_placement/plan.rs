//! How many layers find room on the devices, reckoned from the model's file.
//!
//! An estimate: what computing takes is known to llama.cpp alone, once it has made a context. So it is tried
//! with what the estimate says, and with less where there is no memory for that.

use super::Layers;
use crate::LoadError;
use crate::config::Config;
use crate::memory_estimate::Shape;
use corral_llama::{Device, DeviceKind, DevicePlacement, KvType};
use std::path::Path;

/// Of a device's free memory this part stays free, within the bounds: llama.cpp takes buffers while it
/// computes, some backends end the process when they get none, and there is a context for embeddings.
const SPARE_PART: u64 = 10;
const LEAST_SPARE: u64 = 128 << 20;
const MOST_SPARE: u64 = 1 << 30;
/// Quarters of the layers that are tried one after the other, and 0 after them.
const QUARTERS: [u32; 4] = [4, 3, 2, 1];

/// Where a model is to be put.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    devices: Vec<Device>,
    layers: Layers,
    /// There where there are devices.
    needs: Option<Needs>,
}

/// Bytes that the parts of a model take where they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needs {
    /// Of each layer: weights, cells and states.
    layers: Vec<u64>,
    /// Of what comes after the layers, and of the logits.
    output: u64,
    /// What a step takes on each device.
    step: u64,
}

impl Plan {
    /// For what the configuration asks. Looks at the devices, and reads the head of the file where that
    /// matters.
    pub fn new(config: &Config) -> Result<Self, LoadError> {
        let devices = config.offload.chosen()?;
        if devices.is_empty() && config.offload.kv == KvType::F16 {
            return Ok(Self {
                devices,
                layers: config.offload.layers,
                needs: None,
            });
        }
        Self::on(devices, config, &Shape::read(&config.path)?)
    }

    /// The same, of a file whose head was read.
    pub fn of(config: &Config, shape: &Shape) -> Result<Self, LoadError> {
        Self::on(config.offload.chosen()?, config, shape)
    }

    fn on(devices: Vec<Device>, config: &Config, shape: &Shape) -> Result<Self, LoadError> {
        shape.check_kv(config.offload.kv)?;
        let needs = match devices.len() {
            0 => None,
            count => Some(Needs::of(config, shape, count)?),
        };
        let mut plan = Self {
            devices,
            layers: config.offload.layers,
            needs,
        };
        if plan.layers == Layers::Auto {
            plan.leave_out_full_ones();
        }
        Ok(plan)
    }

    /// Leaves out devices that get nothing, and those in whose place the others would take more: one that gets
    /// some of a model gets it also where there is no room.
    fn leave_out_full_ones(&mut self) {
        let Some(needs) = &self.needs else {
            return;
        };
        while self.devices.len() > 1 {
            let free: Vec<u64> = self.devices.iter().map(|device| device.free).collect();
            let least = (0..free.len()).min_by_key(|index| free[*index]);
            let least = least.unwrap_or(0);
            let mut others = free.clone();
            others.remove(least);
            let fitting = needs.fitting(&free);
            let gets_some = needs.on(fitting, &free)[least] > 0;
            if gets_some && needs.fitting(&others) <= fitting {
                return;
            }
            self.devices.remove(least);
        }
    }

    /// Numbers of layers to try, one after the other, until there is memory; at least one.
    pub fn tries(&self) -> Vec<u32> {
        let Some(needs) = &self.needs else {
            return vec![0];
        };
        match self.layers {
            Layers::Exactly(layers) => vec![layers.min(needs.all())],
            Layers::Auto => {
                let fitting = needs.fitting(&self.free());
                let mut tries: Vec<_> = QUARTERS.map(|quarters| fitting * quarters / 4).into();
                tries.push(0);
                tries.dedup();
                tries
            }
        }
    }

    /// So many layers on the devices.
    pub fn placement(&self, layers: u32) -> DevicePlacement {
        if layers == 0 {
            return DevicePlacement::default();
        }
        let names = self.devices.iter().map(|device| device.name.clone());
        DevicePlacement {
            devices: names.collect(),
            gpu_layers: layers,
        }
    }

    /// Bytes that are expected on devices with a memory of their own.
    pub fn apart(&self) -> u64 {
        let layers = self.tries().first().copied().unwrap_or(0);
        let on = self.on_each(layers);
        let each = self.devices.iter().zip(on);
        each.filter(|(device, _)| device.kind == DeviceKind::Gpu)
            .map(|(_, bytes)| bytes)
            .fold(0, u64::saturating_add)
    }

    /// The names of devices with a memory of their own.
    pub fn apart_from_here(&self) -> Vec<&str> {
        let apart = self.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
        apart.map(|device| device.name.as_str()).collect()
    }

    /// How many layers the model has, its output counted as one; 0 where nobody asked.
    pub fn all(&self) -> u32 {
        self.needs.as_ref().map_or(0, Needs::all)
    }

    /// Says of a load that failed for want of memory what was needed and what there is.
    pub fn refused(&self, path: &Path, layers: u32, cause: String) -> LoadError {
        let names: Vec<_> = self.devices.iter().map(|d| d.name.as_str()).collect();
        let sum = |bytes: Vec<u64>| bytes.into_iter().fold(0, u64::saturating_add);
        LoadError::DeviceMemory {
            path: path.to_owned(),
            layers,
            all: self.all(),
            devices: names.join(", "),
            needed: sum(self.on_each(layers)),
            free: sum(self.free()),
            cause,
        }
    }

    fn on_each(&self, layers: u32) -> Vec<u64> {
        match &self.needs {
            Some(needs) => needs.on(layers, &self.free()),
            None => Vec::new(),
        }
    }

    fn free(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.free).collect()
    }
}

impl Needs {
    /// Of the model on so many devices.
    fn of(config: &Config, shape: &Shape, devices: usize) -> Result<Self, LoadError> {
        let cells = config.cells_for(shape.trained());
        let weights = shape.weights_by_layer()?;
        let state = shape.layer_states(config.sequences);
        let layers = weights.layers.iter().enumerate();
        let layers = layers.map(|(layer, bytes)| {
            let cells = shape.layer_cells(layer, cells, config.offload.kv);
            bytes.saturating_add(cells).saturating_add(state)
        });
        let step = shape.step(cells);
        let selects = config.device_sampling.is_expected(true);
        Ok(Self {
            layers: layers.collect(),
            output: weights.output.saturating_add(shape.logits(selects)),
            // Several devices compute different steps at once, each in buffers of its own.
            step: if devices > 1 {
                step.saturating_mul(2)
            } else {
                step
            },
        })
    }

    /// Layers, the output counted as one.
    fn all(&self) -> u32 {
        u32::try_from(self.layers.len() + 1).unwrap_or(u32::MAX)
    }

    /// The most layers that find room on devices of so much free memory.
    fn fitting(&self, free: &[u64]) -> u32 {
        let fits = |layers: &u32| {
            let mut on = self.on(*layers, free).into_iter().zip(free);
            on.all(|(bytes, free)| bytes <= usable(*free))
        };
        (1..=self.all()).rev().find(fits).unwrap_or(0)
    }

    /// Bytes on each device of so much free memory when the last `layers` are offloaded. llama.cpp gives
    /// each a run of them, as long as its part of all free memory (`llama_model_base::load_tensors`).
    #[allow(clippy::cast_precision_loss)]
    fn on(&self, layers: u32, free: &[u64]) -> Vec<u64> {
        let mut bytes = vec![0_u64; free.len()];
        let count = layers.min(self.all()) as usize;
        let sum = free.iter().fold(0.0, |sum, free| sum + *free as f32);
        let mut end = 0.0;
        let ends: Vec<f32> = free
            .iter()
            .map(|free| {
                end += *free as f32;
                end / sum
            })
            .collect();
        let first = self.layers.len() + 1 - count;
        for index in 0..count {
            let part = index as f32 / count as f32;
            let device = ends.iter().filter(|end| **end <= part).count();
            let layer = self.layers.get(first + index);
            if let Some(bytes) = bytes.get_mut(device) {
                *bytes = bytes.saturating_add(layer.copied().unwrap_or(self.output));
            }
        }
        for bytes in bytes.iter_mut().filter(|bytes| **bytes > 0) {
            *bytes = bytes.saturating_add(self.step);
        }
        bytes
    }
}

/// What may be taken of free memory.
fn usable(free: u64) -> u64 {
    free.saturating_sub((free / SPARE_PART).clamp(LEAST_SPARE, MOST_SPARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn needs() -> Needs {
        Needs {
            layers: vec![100 * MIB; 9],
            output: 300 * MIB,
            step: 50 * MIB,
        }
    }

    fn plan(free: &[u64], layers: Layers) -> Plan {
        let device = |(index, free): (usize, &u64)| Device {
            name: format!("CUDA{index}"),
            description: String::new(),
            kind: DeviceKind::Gpu,
            backend: "CUDA".to_owned(),
            free: *free,
            total: *free,
            id: None,
        };
        Plan {
            devices: free.iter().enumerate().map(device).collect(),
            layers,
            needs: Some(needs()),
        }
    }

    #[test]
    fn as_many_layers_as_find_room_and_then_fewer() {
        let tries = |free: u64| plan(&[free * MIB], Layers::Auto).tries();
        // The output, 9 layers and a step are 1250 MiB.
        assert_eq!(tries(4000), [10, 7, 5, 2, 0]);
        assert_eq!(tries(1388), [9, 6, 4, 2, 0]);
        assert_eq!(tries(1389), [10, 7, 5, 2, 0]);
        // The output alone, and nothing.
        assert_eq!(tries(478), [1, 0]);
        assert_eq!(tries(477), [0]);
        assert_eq!(tries(0), [0]);
    }

    #[test]
    fn exactly_so_many_are_tried_once_and_no_more_than_there_are() {
        let tries = |layers| plan(&[1], Layers::Exactly(layers)).tries();
        assert_eq!(tries(4), [4]);
        assert_eq!(tries(99), [10]);
        let error = plan(&[700 * MIB], Layers::Exactly(10)).refused(
            Path::new("/m/x.gguf"),
            10,
            "no".to_owned(),
        );
        let text = error.to_string();
        for said in ["10 of 10 layers", "CUDA0", "1250 MiB", "700 MiB", "no"] {
            assert!(text.contains(said), "{said}: {text}");
        }
        assert!(!error.without_folder().contains("/m/"));
    }

    #[test]
    fn several_devices_share_by_their_free_memory() {
        let needs = needs();
        let on = |layers, free: &[u64]| -> Vec<u64> {
            let on = needs.on(layers, free);
            on.into_iter().map(|bytes| bytes / MIB).collect()
        };
        assert_eq!(on(10, &[1000, 1000]), [550, 750]);
        assert_eq!(on(10, &[3000, 1000]), [850, 450]);
        assert_eq!(on(10, &[1000]), [1250]);
        assert_eq!(on(99, &[1000]), [1250]);
        assert_eq!(on(1, &[1000, 1000]), [350, 0]);
        assert_eq!(on(0, &[1000, 1000]), [0, 0]);
        assert_eq!(on(3, &[]), [] as [u64; 0]);
    }

    #[test]
    fn a_device_that_is_full_is_left_out() {
        let left = |free: &[u64]| {
            let free: Vec<_> = free.iter().map(|free| free * MIB).collect();
            let mut plan = plan(&free, Layers::Auto);
            plan.leave_out_full_ones();
            plan.placement(1).devices
        };
        assert_eq!(needs().fitting(&[100 * MIB, 4000 * MIB]), 0);
        assert_eq!(left(&[100, 4000]), ["CUDA1"]);
        // They would get none of it.
        assert_eq!(needs().fitting(&[4000 * MIB, 100 * MIB, 50 * MIB]), 10);
        assert_eq!(left(&[4000, 100, 50]), ["CUDA0"]);
        // Neither could take all of it.
        assert_eq!(left(&[1000, 1000]), ["CUDA0", "CUDA1"]);
    }

    #[test]
    fn what_lies_apart_is_what_is_tried_first() {
        let mut plan = plan(&[4000 * MIB], Layers::Auto);
        assert_eq!(plan.apart(), 1250 * MIB);
        assert_eq!(plan.placement(10).devices, ["CUDA0"]);
        assert_eq!(plan.placement(0), DevicePlacement::default());
        plan.devices[0].kind = DeviceKind::Integrated;
        assert_eq!(plan.apart(), 0, "it lies in the machine's memory");
    }
}
