//! The functions that wait and have the same form in `inference-async` and `inference-sync`.

/// Implements them for one of the two. `receiver` is the first parameter of each, `store` its name.
macro_rules! waiting_functions {
    ($store:ident, ($($receiver:tt)*)) => {
        async fn open_model(
            $($receiver)*,
            name: Option<String>,
        ) -> HostResult<Resource<GuestModel>> {
            models::open($store, name).await
        }

        async fn embed(
            $($receiver)*,
            model: Resource<GuestModel>,
            inputs: Vec<Vec<Token>>,
            pooling: Option<Pooling>,
            normalize: Option<bool>,
        ) -> HostResult<Vec<Vec<f32>>> {
            models::embed($store, model, inputs, pooling, normalize).await
        }

        async fn compile_constraint(
            $($receiver)*,
            model: Resource<GuestModel>,
            grammar: Grammar,
        ) -> HostResult<Resource<GuestConstraint>> {
            constraints::compile($store, model, grammar).await
        }

        async fn sample_with(
            $($receiver)*,
            options: Resource<GuestOptions>,
            name: String,
            settings: String,
        ) -> HostResult<()> {
            sampling::sample_with($store, options, name, settings).await
        }

        async fn next(
            $($receiver)*,
            sequence: Resource<GuestSequence>,
            request: NextTokenRequest,
        ) -> HostResult<Distribution> {
            next_token::next($store, sequence, request).await
        }

        async fn next_many(
            $($receiver)*,
            requests: Vec<(Resource<GuestSequence>, NextTokenRequest)>,
        ) -> wasmtime::Result<Vec<Result<Distribution, wit::Error>>> {
            next_token::next_many($store, requests).await
        }

        async fn save_snapshot(
            $($receiver)*,
            sequence: Resource<GuestSequence>,
            name: String,
        ) -> HostResult<()> {
            snapshots::save($store, sequence, name).await
        }

        async fn restore_snapshot(
            $($receiver)*,
            model: Resource<GuestModel>,
            name: String,
        ) -> HostResult<Resource<GuestSequence>> {
            snapshots::restore($store, model, name).await
        }

        async fn delete_snapshot(
            $($receiver)*,
            model: Resource<GuestModel>,
            name: String,
        ) -> HostResult<()> {
            snapshots::delete($store, model, name).await
        }
    };
}

pub(super) use waiting_functions;
