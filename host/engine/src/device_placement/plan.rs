//! Estimates how many layers of a model fit on the devices.
//!
//! Only llama.cpp knows the exact memory of a computation, once it has made a context. So the loader tries the estimated
//! number of layers first, and fewer if memory runs out.

use super::GpuLayers;
use crate::LoadError;
use crate::kv_cache_size::cells_within;
use crate::machine_memory::machine_memory;
use crate::memory_estimate::{MemoryEstimate, WeightBytes};
use crate::model_config::ModelConfig;
use corral_llama::{Device, DeviceKind, DevicePlacement};
use std::path::Path;

/// One part in this many of a device's free memory stays free, within the bounds: llama.cpp allocates buffers while it
/// computes, some backends end the process if they get none, and the embedding context needs memory too.
const RESERVED_PART: u64 = 10;
/// At least this many bytes stay free.
const MIN_RESERVED: u64 = 128 << 20;
/// At most this many bytes stay free.
const MAX_RESERVED: u64 = 1 << 30;
/// Quarters of the fitting layers to try one after the other, before 0.
const QUARTERS: [u32; 4] = [4, 3, 2, 1];

/// The devices of a model, and the numbers of layers to try on them.
#[derive(Clone, Debug)]
pub(crate) struct PlacementPlan {
    devices: Vec<Device>,
    gpu_layers: GpuLayers,
    /// `None` without devices.
    needs: Option<LayerNeeds>,
    /// KV cells if all layers are on devices.
    device_cells: u32,
    /// KV cells otherwise: some lie in the machine's memory.
    host_cells: u32,
}

/// Bytes that the parts of a model need on their device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LayerNeeds {
    /// Of each layer: weights, cells and states.
    layers: Vec<u64>,
    /// Of the output and the logits.
    output: u64,
    /// Of a step, on each device.
    step: u64,
}

impl PlacementPlan {
    /// Plans for a configuration and the estimate of its file.
    pub fn new(config: &ModelConfig, estimate: &MemoryEstimate) -> Result<Self, LoadError> {
        let devices = config.placement.select_devices()?;
        estimate.check_kv_type(config.placement.kv_type)?;
        let host_cells = cells_within(machine_memory().unwrap_or(u64::MAX), config, estimate);
        let mut plan = Self {
            devices,
            gpu_layers: config.placement.gpu_layers,
            needs: None,
            device_cells: host_cells,
            host_cells,
        };
        if plan.devices.is_empty() {
            return Ok(plan);
        }
        let weights = estimate.weights_by_layer()?;
        let count = plan.devices.len();
        let needs = |cells| LayerNeeds::new(config, estimate, &weights, count, cells);
        plan.needs = Some(needs(host_cells));
        if let Some(memory) = plan.device_memory() {
            let device_cells = cells_within(memory, config, estimate);
            plan.try_device_cells(device_cells, needs(device_cells));
        }
        if plan.gpu_layers == GpuLayers::Auto {
            plan.remove_full_devices();
        }
        Ok(plan)
    }

    /// Whether layers may be on devices.
    pub fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Total memory of the devices; `None` if one of them shares the machine's memory.
    fn device_memory(&self) -> Option<u64> {
        let bytes = self.devices.iter().map(|device| {
            let is_separate = device.kind == DeviceKind::Gpu;
            is_separate.then_some(device.total)
        });
        bytes.sum()
    }

    /// Uses this number of cells, with which the layers have these `needs`, if all layers are then on devices: the
    /// machine's memory does not limit cells that lie on devices.
    fn try_device_cells(&mut self, cells: u32, needs: LayerNeeds) {
        let all = needs.layer_count();
        let fits = needs.fitting_layers(&self.free()) == all;
        let is_whole = match self.gpu_layers {
            GpuLayers::Exactly(layers) => layers >= all && (fits || cells < self.host_cells),
            GpuLayers::Auto => fits,
        };
        if is_whole {
            (self.device_cells, self.needs) = (cells, Some(needs));
        }
    }

    /// KV cells with this many layers on devices.
    pub fn cells(&self, layers: u32) -> u32 {
        let is_whole = |needs: &LayerNeeds| layers >= needs.layer_count();
        match self.needs.as_ref().is_some_and(is_whole) {
            true => self.device_cells,
            // `needs` covers no more cells than that.
            false => self.host_cells.min(self.device_cells),
        }
    }

    /// KV cells of the first attempt.
    pub fn first_cells(&self) -> u32 {
        self.cells(self.attempts().first().copied().unwrap_or(0))
    }

    /// Removes devices that get no layer, and those without which more layers fit: llama.cpp gives each device its part
    /// even if it does not fit there.
    fn remove_full_devices(&mut self) {
        let Some(needs) = &self.needs else {
            return;
        };
        while self.devices.len() > 1 {
            let free: Vec<u64> = self.devices.iter().map(|device| device.free).collect();
            let least = (0..free.len()).min_by_key(|index| free[*index]);
            let least = least.unwrap_or(0);
            let mut others = free.clone();
            others.remove(least);
            let fitting = needs.fitting_layers(&free);
            let gets_some = needs.on_each(fitting, &free)[least] > 0;
            if gets_some && needs.fitting_layers(&others) <= fitting {
                return;
            }
            self.devices.remove(least);
        }
    }

    /// Numbers of layers to try in this order; at least one.
    pub fn attempts(&self) -> Vec<u32> {
        let Some(needs) = &self.needs else {
            return vec![0];
        };
        match self.gpu_layers {
            GpuLayers::Exactly(layers) => vec![layers.min(needs.layer_count())],
            GpuLayers::Auto => {
                let fitting = needs.fitting_layers(&self.free());
                let mut attempts: Vec<_> = QUARTERS.map(|quarters| fitting * quarters / 4).into();
                attempts.push(0);
                attempts.dedup();
                attempts
            }
        }
    }

    /// The placement with this many layers on the devices.
    pub fn placement(&self, gpu_layers: u32) -> DevicePlacement {
        if gpu_layers == 0 {
            return DevicePlacement::default();
        }
        let names = self.devices.iter().map(|device| device.name.clone());
        DevicePlacement {
            devices: names.collect(),
            gpu_layers,
        }
    }

    /// Bytes that the first attempt needs on devices with their own memory.
    pub fn device_bytes(&self) -> u64 {
        let layers = self.attempts().first().copied().unwrap_or(0);
        let each = self.devices.iter().zip(self.on_each(layers));
        each.filter(|(device, _)| device.kind == DeviceKind::Gpu)
            .fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// The names of devices with their own memory.
    pub fn devices_with_memory(&self) -> Vec<&str> {
        let gpus = self.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
        gpus.map(|device| device.name.as_str()).collect()
    }

    /// The error of an attempt that ran out of memory: the needed and the free bytes.
    pub fn out_of_memory(&self, path: &Path, layers: u32, cause: String) -> LoadError {
        let names: Vec<_> = self.devices.iter().map(|d| d.name.as_str()).collect();
        let sum = |bytes: Vec<u64>| bytes.into_iter().fold(0, u64::saturating_add);
        LoadError::DeviceMemory {
            path: path.to_owned(),
            layers,
            all: self.needs.as_ref().map_or(0, LayerNeeds::layer_count),
            devices: names.join(", "),
            needed: sum(self.on_each(layers)),
            free: sum(self.free()),
            cause,
        }
    }

    fn on_each(&self, layers: u32) -> Vec<u64> {
        match &self.needs {
            Some(needs) => needs.on_each(layers, &self.free()),
            None => Vec::new(),
        }
    }

    fn free(&self) -> Vec<u64> {
        self.devices.iter().map(|device| device.free).collect()
    }
}

impl LayerNeeds {
    /// The needs of a model with these weights and KV cells on this many devices.
    fn new(
        config: &ModelConfig,
        estimate: &MemoryEstimate,
        weights: &WeightBytes,
        devices: usize,
        cells: u32,
    ) -> Self {
        let state = estimate.layer_state_bytes(config.max_running);
        let layers = weights.layers.iter().enumerate();
        let layers = layers.map(|(layer, bytes)| {
            let cells = estimate.layer_cell_bytes(layer, cells, config.placement.kv_type);
            bytes.saturating_add(cells).saturating_add(state)
        });
        let step = estimate.step_bytes(cells);
        let device_top_k = config.device_top_k.is_expected(true);
        Self {
            layers: layers.collect(),
            output: weights
                .output
                .saturating_add(estimate.logit_bytes(device_top_k)),
            // Several devices compute different steps at once, each in its own buffers.
            step: if devices > 1 {
                step.saturating_mul(2)
            } else {
                step
            },
        }
    }

    /// Number of layers; the output counts as one.
    fn layer_count(&self) -> u32 {
        u32::try_from(self.layers.len() + 1).unwrap_or(u32::MAX)
    }

    /// The largest number of layers that fits on devices with this much free memory.
    fn fitting_layers(&self, free: &[u64]) -> u32 {
        let fits = |layers: &u32| {
            let mut each = self.on_each(*layers, free).into_iter().zip(free);
            each.all(|(bytes, free)| bytes <= usable(*free))
        };
        (1..=self.layer_count()).rev().find(fits).unwrap_or(0)
    }

    /// Bytes on each device with the last `layers` on devices. llama.cpp gives each a run of them in proportion to its
    /// free memory (`llama_model_base::load_tensors`).
    #[allow(clippy::cast_precision_loss)]
    fn on_each(&self, layers: u32, free: &[u64]) -> Vec<u64> {
        let mut bytes = vec![0_u64; free.len()];
        let count = layers.min(self.layer_count()) as usize;
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

/// The usable part of free memory.
fn usable(free: u64) -> u64 {
    free.saturating_sub((free / RESERVED_PART).clamp(MIN_RESERVED, MAX_RESERVED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn needs() -> LayerNeeds {
        LayerNeeds {
            layers: vec![100 * MIB; 9],
            output: 300 * MIB,
            step: 50 * MIB,
        }
    }

    fn plan(free: &[u64], gpu_layers: GpuLayers) -> PlacementPlan {
        let device = |(index, free): (usize, &u64)| Device {
            name: format!("CUDA{index}"),
            description: String::new(),
            kind: DeviceKind::Gpu,
            backend: "CUDA".to_owned(),
            free: *free,
            total: *free,
            id: None,
        };
        PlacementPlan {
            devices: free.iter().enumerate().map(device).collect(),
            gpu_layers,
            needs: Some(needs()),
            device_cells: 1024,
            host_cells: 1024,
        }
    }

    #[test]
    fn auto_tries_fitting_layers_then_fewer() {
        let attempts = |free: u64| plan(&[free * MIB], GpuLayers::Auto).attempts();
        // The output, 9 layers and a step need 1250 MiB.
        assert_eq!(attempts(4000), [10, 7, 5, 2, 0]);
        assert_eq!(attempts(1388), [9, 6, 4, 2, 0]);
        assert_eq!(attempts(1389), [10, 7, 5, 2, 0]);
        // The output alone, and nothing.
        assert_eq!(attempts(478), [1, 0]);
        assert_eq!(attempts(477), [0]);
        assert_eq!(attempts(0), [0]);
    }

    #[test]
    fn exact_number_of_layers_is_tried_once() {
        let attempts = |layers| plan(&[1], GpuLayers::Exactly(layers)).attempts();
        assert_eq!(attempts(4), [4]);
        assert_eq!(attempts(99), [10]);
        let plan = plan(&[700 * MIB], GpuLayers::Exactly(10));
        let error = plan.out_of_memory(Path::new("/m/x.gguf"), 10, "no".to_owned());
        let text = error.to_string();
        for part in ["10 of 10 layers", "CUDA0", "1250 MiB", "700 MiB", "no"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!error.redacted().contains("/m/"));
    }

    #[test]
    fn machine_memory_limits_cells_outside_of_devices_only() {
        let large = LayerNeeds {
            layers: vec![120 * MIB; 9],
            ..needs()
        };
        let cells = |free: u64, gpu_layers| {
            let mut plan = plan(&[free * MIB], gpu_layers);
            plan.try_device_cells(16_384, large.clone());
            (plan.first_cells(), plan.cells(9))
        };
        // With more cells, all needs 1430 MiB beside the reserve of a tenth.
        assert_eq!(cells(1590, GpuLayers::Auto), (16_384, 1024));
        assert_eq!(cells(1580, GpuLayers::Auto), (1024, 1024));
        assert_eq!(cells(100, GpuLayers::Exactly(10)), (1024, 1024));
        assert_eq!(cells(4000, GpuLayers::Exactly(9)), (1024, 1024));
        let mut plan = plan(&[5, 6], GpuLayers::Auto);
        assert_eq!(plan.device_memory(), Some(11));
        plan.devices[1].kind = DeviceKind::Integrated;
        assert_eq!(plan.device_memory(), None, "it shares the machine's memory");
    }

    #[test]
    fn devices_share_layers_by_free_memory() {
        let needs = needs();
        let on_each = |layers, free: &[u64]| -> Vec<u64> {
            let bytes = needs.on_each(layers, free);
            bytes.into_iter().map(|bytes| bytes / MIB).collect()
        };
        assert_eq!(on_each(10, &[1000, 1000]), [550, 750]);
        assert_eq!(on_each(10, &[3000, 1000]), [850, 450]);
        assert_eq!(on_each(10, &[1000]), [1250]);
        assert_eq!(on_each(99, &[1000]), [1250]);
        assert_eq!(on_each(1, &[1000, 1000]), [350, 0]);
        assert_eq!(on_each(0, &[1000, 1000]), [0, 0]);
        assert_eq!(on_each(3, &[]), [] as [u64; 0]);
    }

    #[test]
    fn full_devices_are_removed() {
        let remaining = |free: &[u64]| {
            let free: Vec<_> = free.iter().map(|free| free * MIB).collect();
            let mut plan = plan(&free, GpuLayers::Auto);
            plan.remove_full_devices();
            plan.placement(1).devices
        };
        assert_eq!(needs().fitting_layers(&[100 * MIB, 4000 * MIB]), 0);
        assert_eq!(remaining(&[100, 4000]), ["CUDA1"]);
        // The small ones would get no layer.
        let free = [4000 * MIB, 100 * MIB, 50 * MIB];
        assert_eq!(needs().fitting_layers(&free), 10);
        assert_eq!(remaining(&[4000, 100, 50]), ["CUDA0"]);
        // Neither has room for all layers.
        assert_eq!(remaining(&[1000, 1000]), ["CUDA0", "CUDA1"]);
    }

    #[test]
    fn device_bytes_are_those_of_the_first_attempt() {
        let mut plan = plan(&[4000 * MIB], GpuLayers::Auto);
        assert_eq!(plan.device_bytes(), 1250 * MIB);
        assert_eq!(plan.placement(10).devices, ["CUDA0"]);
        assert_eq!(plan.placement(0), DevicePlacement::default());
        plan.devices[0].kind = DeviceKind::Integrated;
        assert_eq!(plan.device_bytes(), 0, "it shares the machine's memory");
    }
}
