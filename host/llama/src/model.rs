//! A loaded model and its vocabulary.

mod special_tokens;

use crate::device::DevicePlacement;
use crate::load_observer::LoadObserver;
use crate::{LlamaError, LoadGate, LoadProgress, LoadStage, Token, backends, ggml, gguf, log};
use llama_cpp_sys_2 as sys;
use special_tokens::SpecialTokens;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr::NonNull;

/// Least bytes of the pieces in which a text is tokenized, but for the last. A piece has a few hundred special tokens at
/// most, unless they overlap.
const PIECE_BYTES: usize = 4096;

/// How weights come from the file into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// Read into private memory. A file that changes later changes nothing.
    #[default]
    Read,
    /// Mapped, and shared with other processes. A file that is truncated while it is mapped ends the process.
    Map,
}

/// The weights and the vocabulary of a model file. Read-only once loaded.
pub struct Model {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    vocabulary_size: usize,
    pieces: Pieces,
    special_tokens: SpecialTokens,
    placement: DevicePlacement,
    /// llama.cpp frees them with the model.
    pub(crate) adapters: Vec<NonNull<sys::llama_adapter_lora>>,
}

// SAFETY: after loading nothing changes the model; llama.cpp's functions on a const model or vocabulary keep no state.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by `llama_model_load_from_file` and freed once, after every context (they hold an `Arc` of
        // this). llama.cpp frees its adapters with it.
        unsafe { sys::llama_model_free(self.model.as_ptr()) };
    }
}

impl Model {
    /// [`Model::load_gated`] that reads the weights, without a gate.
    pub fn load(
        path: &Path,
        placement: DevicePlacement,
        progress: &LoadProgress,
    ) -> Result<Self, LlamaError> {
        Self::load_gated(path, placement, FileAccess::Read, progress, &|_| true)
    }

    /// Loads a GGUF file, without adapters, with its last layers on the devices of `placement`. Blocks for as long as
    /// the disk takes, or until `progress` is canceled or `gate` ends it, which is asked before all stages up to
    /// [`LoadStage::Context`].
    pub fn load_gated(
        path: &Path,
        placement: DevicePlacement,
        access: FileAccess,
        progress: &LoadProgress,
        gate: LoadGate<'_>,
    ) -> Result<Self, LlamaError> {
        check_magic(path)?;
        backends::start()?;
        let damaged = |cause: String| LlamaError::Damaged {
            path: path.to_owned(),
            cause,
        };
        let file = path
            .to_str()
            .and_then(|text| CString::new(text).ok())
            .ok_or_else(|| {
                LlamaError::Setup(format!(
                    "the path {} is not valid UTF-8, which llama.cpp needs; rename the file",
                    path.display()
                ))
            })?;
        // An empty list means no devices; no list means all devices.
        let mut devices: Vec<_> = placement
            .devices
            .iter()
            .map(|name| ggml::device(name).ok_or_else(|| no_device(name)))
            .collect::<Result<_, _>>()?;
        devices.push(std::ptr::null_mut());
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.devices = devices.as_mut_ptr();
        params.load_mode = match access {
            FileAccess::Read => sys::LLAMA_LOAD_MODE_NONE,
            FileAccess::Map => sys::LLAMA_LOAD_MODE_MMAP,
        };
        params.n_gpu_layers = i32::try_from(placement.gpu_layers).unwrap_or(i32::MAX);
        log::take_first_error();
        let observer = LoadObserver::new(progress, gate);
        // SAFETY: the list of devices outlives the call and ends with null; all other pointers of `params` are null.
        let model = unsafe { observer.load(&file, params) };
        let model = NonNull::new(model).ok_or_else(|| {
            if observer.is_ended() {
                return LlamaError::Canceled;
            }
            damaged(log::take_first_error().unwrap_or_else(|| "llama.cpp refused it".into()))
        })?;
        if !observer.passes(LoadStage::Context(observer.tensors())) {
            // SAFETY: just loaded, used by nothing.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(LlamaError::Canceled);
        }
        // SAFETY: the model is alive.
        let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
        let Some(vocab) = NonNull::new(vocab.cast_mut()) else {
            // SAFETY: just loaded, used by nothing.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(damaged("it has no vocabulary".into()));
        };
        // SAFETY: the vocabulary is alive.
        let vocabulary_size = unsafe { sys::llama_vocab_n_tokens(vocab.as_ptr()) };
        let mut loaded = Self {
            model,
            vocab,
            vocabulary_size: usize::try_from(vocabulary_size).unwrap_or(0),
            pieces: Pieces::default(),
            special_tokens: SpecialTokens::default(),
            placement,
            adapters: Vec::new(),
        };
        let unsuitable = |cause: &str| LlamaError::Unsuitable {
            path: path.to_owned(),
            cause: cause.into(),
        };
        if loaded.vocabulary_size == 0 {
            return Err(unsuitable("its vocabulary is empty"));
        }
        // SAFETY: the model is alive.
        let (decodes, encodes) = unsafe {
            (
                sys::llama_model_has_decoder(model.as_ptr()),
                sys::llama_model_has_encoder(model.as_ptr()),
            )
        };
        if !decodes || encodes {
            return Err(unsuitable("it is not a decoder-only model"));
        }
        loaded.pieces = Pieces::read(&loaded);
        loaded.special_tokens = SpecialTokens::read(&loaded);
        Ok(loaded)
    }

    /// The pointer, valid as long as this value.
    pub fn as_ptr(&self) -> *mut sys::llama_model {
        self.model.as_ptr()
    }

    pub(crate) fn vocab_ptr(&self) -> *const sys::llama_vocab {
        self.vocab.as_ptr()
    }

    /// The devices of its layers.
    pub fn placement(&self) -> &DevicePlacement {
        &self.placement
    }

    /// Heads of keys in a layer.
    #[cfg(own_attention)]
    pub(crate) fn key_heads(&self) -> i32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_head_kv(self.as_ptr()) }
    }

    /// Number of layers; the output counts as one.
    pub fn layer_count(&self) -> u32 {
        // SAFETY: the model is alive.
        let layers = unsafe {
            sys::llama_model_n_layer(self.as_ptr())
                .saturating_add(sys::llama_model_n_layer_nextn(self.as_ptr()))
        };
        u32::try_from(layers).unwrap_or(0).saturating_add(1)
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Number of positions that the model was trained on.
    pub fn trained_context(&self) -> u32 {
        // SAFETY: the model is alive.
        u32::try_from(unsafe { sys::llama_model_n_ctx_train(self.as_ptr()) }).unwrap_or(0)
    }

    /// Whether a device computes the logits: the output is the first layer that llama.cpp puts on one.
    pub fn output_on_device(&self) -> bool {
        self.placement.gpu_layers > 0
    }

    /// Length of an embedding.
    pub fn embedding_length(&self) -> u32 {
        // SAFETY: the model is alive.
        u32::try_from(unsafe { sys::llama_model_n_embd(self.as_ptr()) }).unwrap_or(0)
    }

    /// Whether sequences can be truncated and share a part: false for recurrent, hybrid and sliding-window models.
    /// Every model can share and save whole sequences.
    ///
    /// - A recurrent model keeps one state per sequence, the one after the last position.
    ///   `llama_memory_recurrent::seq_rm` refuses a part, and `seq_cp` ignores the bounds and shares the whole: a part
    ///   would silently continue from the wrong state.
    /// - A hybrid model has such layers too. `llama_memory_hybrid::seq_cp` shares a part of the attention and the whole
    ///   recurrent state.
    /// - A sliding window forgets. `llama_kv_cache::find_slot` gives a cell to any sequence once the cell lies behind
    ///   the window of the one sequence that holds it; `apply_ubatch` then drops every earlier position too. A
    ///   full-size window cache (`swa_full`, the default) has room for all positions, but follows the same rule: the
    ///   search takes old cells after a lower cell was freed or the end was reached. A sequence cut at a length needs
    ///   the window before that length. If it is gone, llama.cpp reports nothing and computes over the rest.
    ///
    /// A part of a sliding-window sequence is right as long as its `llama_memory_seq_pos_min` is at most `length` less
    /// the window, which any step of any sequence can change; llama.cpp's own server checks it each time. This returns
    /// false instead. The window comes from the file's parameters, so a model that names one without using it counts as
    /// having it.
    pub fn can_truncate(&self) -> bool {
        // SAFETY: the model is alive.
        !self.has_recurrent_layers() && unsafe { sys::llama_model_n_swa(self.as_ptr()) } <= 0
    }

    /// Whether some or all layers are recurrent: true for recurrent and hybrid models.
    pub fn has_recurrent_layers(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe {
            sys::llama_model_is_recurrent(self.as_ptr())
                || sys::llama_model_is_hybrid(self.as_ptr())
        }
    }

    /// The beginning-of-sequence token, if the model expects one.
    pub fn bos_token(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        unsafe {
            sys::llama_vocab_get_add_bos(self.vocab.as_ptr())
                .then(|| sys::llama_vocab_bos(self.vocab.as_ptr()))
        }
        .and_then(|token| Token::try_from(token).ok())
    }

    /// The end-of-turn token, or else the end-of-sequence token, if the file names one.
    pub fn end_token(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        let named = unsafe {
            [
                sys::llama_vocab_eot(self.vocab.as_ptr()),
                sys::llama_vocab_eos(self.vocab.as_ptr()),
            ]
        };
        named
            .into_iter()
            .find_map(|token| Token::try_from(token).ok())
    }

    /// All tokens that end a generation, in rising order.
    pub fn end_of_generation_tokens(&self) -> Vec<Token> {
        (0..i32::try_from(self.vocabulary_size).unwrap_or(0))
            // SAFETY: the vocabulary is alive and the token within it.
            .filter(|&token| unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), token) })
            .filter_map(|token| Token::try_from(token).ok())
            .collect()
    }

    /// The template of the file with this name, or the default chat template.
    pub fn chat_template(&self, name: Option<&CStr>) -> Option<String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the model is alive; the name is null, for the default template, or NUL-terminated.
        let text = unsafe { sys::llama_model_chat_template(self.as_ptr(), name) };
        // SAFETY: a template that is not null is NUL-terminated and lives as long as the model.
        (!text.is_null())
            .then(|| {
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|text| !text.is_empty())
    }

    /// Tokenizes a text. With `special`, the names of control tokens become these tokens. Adds no token at either end.
    /// `None` if the text is longer than 2 GiB.
    pub fn tokenize(&self, text: &str, special: bool) -> Option<Vec<Token>> {
        let mut rest = text.as_bytes();
        i32::try_from(rest.len()).ok()?;
        let mut tokens = Vec::new();
        let mut start = 0;
        for cut in self.special_tokens.cuts(rest, special, PIECE_BYTES) {
            let (piece, behind) = rest.split_at(cut - start);
            tokens.extend(self.tokenize_piece(piece, special)?);
            (rest, start) = (behind, cut);
        }
        let last = self.tokenize_piece(rest, special)?;
        if tokens.is_empty() {
            return Some(last);
        }
        tokens.extend(last);
        Some(tokens)
    }

    /// [`Model::tokenize`] in one call of llama.cpp.
    fn tokenize_piece(&self, text: &[u8], special: bool) -> Option<Vec<Token>> {
        let length = i32::try_from(text.len()).ok()?;
        if length == 0 {
            return Some(Vec::new());
        }
        // A token has one byte at least; some vocabularies add a space before the text.
        let mut tokens = vec![0; text.len() + 2];
        for _ in 0..2 {
            // SAFETY: text and buffer are valid for the lengths that are passed with them.
            let count = unsafe {
                sys::llama_tokenize(
                    self.vocab.as_ptr(),
                    text.as_ptr().cast::<c_char>(),
                    length,
                    tokens.as_mut_ptr(),
                    i32::try_from(tokens.len()).ok()?,
                    false,
                    special,
                )
            };
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return tokens
                    .into_iter()
                    .map(|t| Token::try_from(t).ok())
                    .collect();
            }
            // A negative result is the number of tokens that are needed.
            tokens.resize(usize::try_from(count.checked_neg()?).ok()?, 0);
        }
        None
    }

    /// The bytes of a token. Empty for control tokens unless `special`, and for tokens outside the vocabulary.
    pub fn piece(&self, token: Token, special: bool) -> &[u8] {
        self.pieces.get(token, special)
    }

    /// A value of the file's metadata as text, if it has at most 63 bytes.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = [0_u8; 64];
        // SAFETY: the model is alive, the key NUL-terminated, and llama.cpp writes no more than the buffer holds.
        let length = unsafe {
            sys::llama_model_meta_val_str(
                self.as_ptr(),
                key.as_ptr(),
                buffer.as_mut_ptr().cast::<c_char>(),
                buffer.len(),
            )
        };
        // The result is the length of the whole text, also if it did not fit.
        let text = buffer.get(..usize::try_from(length).ok()?)?;
        (text.len() < buffer.len()).then(|| String::from_utf8_lossy(text).into_owned())
    }

    fn read_piece(&self, token: i32, special: bool, buffer: &mut Vec<u8>) {
        loop {
            // SAFETY: the vocabulary is alive, the token within it, and the buffer valid for the
            // length passed with it.
            let length = unsafe {
                sys::llama_token_to_piece(
                    self.vocab.as_ptr(),
                    token,
                    buffer.as_mut_ptr().cast::<c_char>(),
                    i32::try_from(buffer.len()).unwrap_or(i32::MAX),
                    0,
                    special,
                )
            };
            if let Ok(length) = usize::try_from(length) {
                buffer.truncate(length);
                return;
            }
            // A negative result is the number of bytes that are needed.
            buffer.resize(length.unsigned_abs() as usize, 0);
        }
    }
}

fn no_device(device: &str) -> LlamaError {
    LlamaError::Setup(format!(
        "there is no device {device}; `corral doctor` lists the devices"
    ))
}

/// The bytes of every token, read once: llama.cpp would copy them, and look them up under its own rules, for each
/// generated token.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    /// Offset of each token's piece, and the end.
    starts: Vec<u32>,
    /// Control tokens and their names, sorted by token.
    control: Vec<(Token, Box<[u8]>)>,
}

impl Pieces {
    fn read(model: &Model) -> Self {
        let mut pieces = Self::default();
        let mut buffer = Vec::new();
        pieces.starts.push(0);
        for token in 0..model.vocabulary_size {
            let id = i32::try_from(token).unwrap_or(0);
            buffer.resize(64, 0);
            model.read_piece(id, false, &mut buffer);
            pieces.bytes.extend_from_slice(&buffer);
            if buffer.is_empty() {
                buffer.resize(64, 0);
                model.read_piece(id, true, &mut buffer);
                if !buffer.is_empty() {
                    pieces
                        .control
                        .push((Token::try_from(token).unwrap_or(0), (&buffer[..]).into()));
                }
            }
            pieces
                .starts
                .push(u32::try_from(pieces.bytes.len()).unwrap_or(u32::MAX));
        }
        pieces
    }

    fn get(&self, token: Token, special: bool) -> &[u8] {
        let index = token as usize;
        let (Some(&start), Some(&end)) = (self.starts.get(index), self.starts.get(index + 1))
        else {
            return &[];
        };
        let plain = &self.bytes[start as usize..end as usize];
        if plain.is_empty() && special {
            return self
                .control
                .binary_search_by_key(&token, |(control, _)| *control)
                .map_or(&[], |found| &self.control[found].1);
        }
        plain
    }
}

/// Checks that a file is readable and begins with the GGUF magic: its error is clearer than llama.cpp's.
pub fn check_magic(path: &Path) -> Result<(), LlamaError> {
    let path = path.to_owned();
    match gguf::has_magic(&path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(LlamaError::NotGguf { path }),
        Err(cause) => Err(LlamaError::Unreadable { path, cause }),
    }
}
