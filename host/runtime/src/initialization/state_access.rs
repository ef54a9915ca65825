//! Reads the memories and globals of an instrumented component, through the exports that wizer added to it.

use wasmtime::component::{Instance, Lift, WasmList};
use wasmtime::{Error, Result, Store};
use wasmtime_wizer::ComponentInstanceState;

/// An instance after its initialization.
pub(super) struct StateAccess<T: 'static> {
    store: Store<T>,
    instance: Instance,
    /// The first error: wizer's trait has no place for one.
    error: Option<Error>,
}

impl<T: Send> StateAccess<T> {
    pub(super) fn new(store: Store<T>, instance: Instance) -> Self {
        Self {
            store,
            instance,
            error: None,
        }
    }

    /// Fails if some state could not be read.
    pub(super) fn finish(self) -> Result<()> {
        self.error.map_or(Ok(()), Err)
    }

    async fn call<R: Lift + 'static>(&mut self, interface: &str, function: &str) -> Result<R> {
        let store = &mut self.store;
        let missing = || Error::msg(format!("the instance has no {interface}.{function}"));
        let interface = self.instance.get_export_index(&mut *store, None, interface);
        let function = interface
            .and_then(|of| {
                self.instance
                    .get_export_index(&mut *store, Some(&of), function)
            })
            .ok_or_else(missing)?;
        let function = self
            .instance
            .get_typed_func::<(), (R,)>(&mut *store, &function)?;
        let (value,) = function.call_async(&mut *store, ()).await?;
        Ok(value)
    }

    /// The value of a global; 0 after an error.
    async fn global<R: Lift + Default + 'static>(&mut self, interface: &str, function: &str) -> R {
        match self.call(interface, function).await {
            Ok(value) => value,
            Err(error) => {
                self.error.get_or_insert(error);
                R::default()
            }
        }
    }
}

impl<T: Send> ComponentInstanceState for StateAccess<T> {
    async fn call_func_ret_list_u8(
        &mut self,
        instance: &str,
        func: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) {
        match self.call::<WasmList<u8>>(instance, func).await {
            Ok(bytes) => contents(bytes.as_le_slice(&self.store)),
            Err(error) => {
                self.error.get_or_insert(error);
                contents(&[]);
            }
        }
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.global(instance, func).await
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.global(instance, func).await
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.global::<f32>(instance, func).await.to_bits()
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.global::<f64>(instance, func).await.to_bits()
    }
}
