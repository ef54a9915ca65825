//! Loads the draft model of a model.

use super::loaded_model::{LoadedModel, MemoryUse};
use crate::LoadError;
use crate::draft_model::{DraftModel, DraftSizes};
use crate::model_config::ModelConfig;
use corral_llama::{LlamaContext, LoadProgress, Model};
use std::borrow::Cow;
use std::path::Path;

/// Most tokens that one vocabulary may have after those of the other: models of a family pad their vocabularies to
/// different sizes.
const MAX_PADDING: usize = 128;

/// A draft model in memory, with a context.
pub(super) struct LoadedDraft {
    pub model: DraftModel<LlamaContext>,
    pub memory: MemoryUse,
}

impl LoadedDraft {
    /// Loads the draft model of a configuration, if it has one. Fails if it can't draft for `loaded`.
    pub fn load(
        config: &ModelConfig,
        loaded: &LoadedModel,
        progress: &LoadProgress,
    ) -> Result<Option<Self>, LoadError> {
        let Some(path) = &config.draft else {
            return Ok(None);
        };
        if !can_truncate(loaded) {
            return Err(LoadError::Config(format!(
                "the model {} can't truncate sequences, because it has recurrent layers or a sliding window or is an \
                 encoder, so it can't verify the drafts of {}; give it no draft model",
                file_name(&config.path),
                file_name(path)
            )));
        }
        let cells = loaded.backend.cells();
        let draft_config = config.draft_config(path, loaded.context, cells)?;
        let draft = LoadedModel::load(&draft_config, progress, &|_| true)?;
        if !can_truncate(&draft) {
            return Err(LoadError::Config(format!(
                "{} can't draft: it has recurrent layers or a sliding window, or is an encoder; give a draft model with \
                 full attention",
                file_name(path)
            )));
        }
        let vocabulary = common_vocabulary(
            (config.path.as_path(), loaded.model.as_ref()),
            (path.as_path(), draft.model.as_ref()),
        )?;
        tracing::info!(
            model = config.name,
            draft = %path.display(),
            context = draft.context,
            "draft model loaded"
        );
        let sizes = DraftSizes {
            seq_ids: draft.settings.seq_ids,
            cells: draft.backend.cells(),
            step_tokens: draft.backend.step_tokens(),
            context: draft.context,
            vocabulary,
            end_of_generation: loaded.model.end_of_generation_tokens(),
        };
        Ok(Some(Self {
            model: DraftModel::new(draft.backend, sizes),
            memory: draft.memory,
        }))
    }
}

/// Whether a model can drop the last tokens of a sequence. An encoder keeps none.
fn can_truncate(loaded: &LoadedModel) -> bool {
    loaded.model.can_truncate() && loaded.backend.has_memory()
}

/// The name of a file: errors of loads are shown to readers outside of the machine.
fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Number of tokens that both models have. Fails unless these are the same.
fn common_vocabulary(
    (path, model): (&Path, &Model),
    (draft_path, draft): (&Path, &Model),
) -> Result<u32, LoadError> {
    let differs = |how: String| {
        LoadError::Config(format!(
            "the draft model {} has another vocabulary than {}: {how}; give a draft model of the same family",
            file_name(draft_path),
            file_name(path)
        ))
    };
    let (size, draft_size) = (model.vocabulary_size(), draft.vocabulary_size());
    if size.abs_diff(draft_size) > MAX_PADDING {
        return Err(differs(format!("{draft_size} tokens instead of {size}")));
    }
    let common = u32::try_from(size.min(draft_size)).unwrap_or(u32::MAX);
    let text =
        |model: &Model, token| String::from_utf8_lossy(model.piece(token, true)).into_owned();
    let different = (0..common).find(|&token| model.piece(token, true) != draft.piece(token, true));
    match different {
        None => Ok(common),
        Some(token) => {
            let (expected, found) = (text(model, token), text(draft, token));
            Err(differs(format!(
                "token {token} is {found:?} instead of {expected:?}"
            )))
        }
    }
}
