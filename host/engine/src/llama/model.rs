//! A loaded model and its vocabulary.

use super::{adapters, device, log, registry};
use crate::Token;
use crate::error::LoadError;
use crate::offload::Placement;
use crate::progress::Progress;
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::ptr::NonNull;

/// The weights and the vocabulary of a model file. Read-only once loaded.
pub struct Model {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    size: usize,
    pieces: Pieces,
    placement: Placement,
    pub(super) adapters: adapters::Loaded,
}

// SAFETY: after loading nothing changes the model; llama.cpp's functions on a const model or
// vocabulary keep no state.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by `llama_model_load_from_file` and freed once, after every context (they
        // hold an `Arc` of this). llama.cpp frees its adapters with it.
        unsafe { sys::llama_model_free(self.model.as_ptr()) };
    }
}

impl Model {
    /// [`Model::load_placed`] for the processor alone.
    #[cfg(test)]
    pub fn load(path: &Path, progress: &Progress) -> Result<Self, LoadError> {
        Self::load_placed(path, Placement::default(), progress)
    }

    /// Loads a GGUF file, without adapters, with as many of its layers on devices as `placement` says, of
    /// devices that are there. Blocks for as long as the disk takes, or until `progress` is told to stop.
    pub(crate) fn load_placed(
        path: &Path,
        placement: Placement,
        progress: &Progress,
    ) -> Result<Self, LoadError> {
        check_magic(path)?;
        registry::start()?;
        let damaged = |cause: String| LoadError::Damaged {
            path: path.to_owned(),
            cause,
        };
        let file = path
            .to_str()
            .and_then(|text| CString::new(text).ok())
            .ok_or_else(|| {
                LoadError::Config(format!(
                    "the path {} is not valid UTF-8, which llama.cpp needs; rename the file",
                    path.display()
                ))
            })?;
        // A list without any is not the same as no list, which stands for all that there are.
        let mut list: Vec<_> = placement
            .devices
            .iter()
            .map(|name| device::pointer(name).ok_or_else(|| gone(name)))
            .collect::<Result<_, _>>()?;
        list.push(std::ptr::null_mut());
        // SAFETY: no arguments, a plain struct out.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.devices = list.as_mut_ptr();
        params.n_gpu_layers = i32::try_from(placement.layers).unwrap_or(i32::MAX);
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = std::ptr::from_ref(progress).cast_mut().cast();
        log::take_last_error();
        // SAFETY: `file` is NUL-terminated and outlives the call, and so do `progress` and the list of
        // devices, which ends with null; llama.cpp looks at neither any more afterwards. All other
        // pointers of `params` are null.
        let model = unsafe { sys::llama_model_load_from_file(file.as_ptr(), params) };
        let model = NonNull::new(model).ok_or_else(|| {
            if progress.is_stopped() {
                return LoadError::Cancelled;
            }
            damaged(log::take_last_error().unwrap_or_else(|| "llama.cpp refused it".into()))
        })?;
        // SAFETY: the model is alive.
        let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
        let Some(vocab) = NonNull::new(vocab.cast_mut()) else {
            // SAFETY: just loaded, used by nothing.
            unsafe { sys::llama_model_free(model.as_ptr()) };
            return Err(damaged("it has no vocabulary".into()));
        };
        // SAFETY: the vocabulary is alive.
        let size = unsafe { sys::llama_vocab_n_tokens(vocab.as_ptr()) };
        let mut loaded = Self {
            model,
            vocab,
            size: usize::try_from(size).unwrap_or(0),
            pieces: Pieces::default(),
            placement,
            adapters: Vec::new(),
        };
        let unsuitable = |cause: &str| LoadError::Unsuitable {
            path: path.to_owned(),
            cause: cause.into(),
        };
        if loaded.size == 0 {
            return Err(unsuitable("its vocabulary is empty"));
        }
        // SAFETY: the model is alive.
        if !unsafe { sys::llama_model_has_decoder(model.as_ptr()) }
            || unsafe { sys::llama_model_has_encoder(model.as_ptr()) }
        {
            return Err(unsuitable("it is no decoder-only model"));
        }
        loaded.pieces = Pieces::read(&loaded);
        Ok(loaded)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.model.as_ptr()
    }

    #[cfg(any(test, feature = "reference"))]
    pub(super) fn vocabulary_pointer(&self) -> *const sys::llama_vocab {
        self.vocab.as_ptr()
    }

    /// What of it is on devices.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Its layers, the output counted as one.
    pub fn layers(&self) -> u32 {
        // SAFETY: the model is alive.
        let layers = unsafe {
            sys::llama_model_n_layer(self.as_ptr())
                .saturating_add(sys::llama_model_n_layer_nextn(self.as_ptr()))
        };
        u32::try_from(layers).unwrap_or(0).saturating_add(1)
    }

    /// Number of tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.size
    }

    /// Positions that the model was trained on.
    pub fn trained_context(&self) -> u32 {
        // SAFETY: the model is alive.
        u32::try_from(unsafe { sys::llama_model_n_ctx_train(self.as_ptr()) }).unwrap_or(0)
    }

    /// Whether logits are computed on a device: the output is the first layer that is offloaded.
    pub fn output_on_device(&self) -> bool {
        self.placement.layers > 0
    }

    /// Length of an embedding.
    pub fn embedding_length(&self) -> u32 {
        // SAFETY: the model is alive.
        u32::try_from(unsafe { sys::llama_model_n_embd(self.as_ptr()) }).unwrap_or(0)
    }

    /// Whether a part of a sequence can be shared, and a sequence be truncated. False for recurrent,
    /// hybrid and sliding-window models. The whole of a sequence can be shared and saved with any.
    ///
    /// - A recurrent model keeps one state for all positions of a sequence, the one after the last.
    ///   llama.cpp's `llama_memory_recurrent::seq_rm` refuses a part, and its `seq_cp` ignores the
    ///   bounds and shares the whole: a part would silently continue from the wrong state.
    /// - A hybrid model has such layers too. `llama_memory_hybrid::seq_cp` would share a part of
    ///   the attention and the whole of the recurrent state.
    /// - A sliding window forgets. `llama_kv_cache::find_slot` gives a cell away, to any sequence,
    ///   as soon as it lies behind the window of the one sequence that holds it, seen from that
    ///   sequence's last position; `apply_ubatch` then drops every earlier position too. A full-size
    ///   window cache (`swa_full`, the default) has room for all, but the rule is the same: old
    ///   cells last only until the search comes by them, which it does as soon as a cell below them
    ///   was freed or the end was reached. Cut at a length, a sequence needs the window before that
    ///   length, and it may be gone while nothing says so: llama.cpp then computes over what is left.
    ///
    /// A part of a sliding-window sequence would be right as long as `llama_memory_seq_pos_min` of
    /// it is at most `length` less the window, which can change with any step of anybody: it would
    /// have to be asked at the very moment, and llama.cpp's own server does. This says no instead.
    /// The window is asked of the file's parameters, so a model that names one without using it
    /// counts as having it.
    pub fn can_truncate(&self) -> bool {
        // SAFETY: the model is alive.
        self.can_fork() && unsafe { sys::llama_model_n_swa(self.as_ptr()) } <= 0
    }

    /// What a plugin is told about forks and truncation: false for recurrent and hybrid models.
    pub fn can_fork(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe {
            !sys::llama_model_is_recurrent(self.as_ptr())
                && !sys::llama_model_is_hybrid(self.as_ptr())
        }
    }

    /// The token that begins a text, if the model wants one.
    pub fn begin(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        unsafe {
            sys::llama_vocab_get_add_bos(self.vocab.as_ptr())
                .then(|| sys::llama_vocab_bos(self.vocab.as_ptr()))
        }
        .and_then(|token| Token::try_from(token).ok())
    }

    /// The token that ends a turn, or else a text, if the file names one.
    pub fn end(&self) -> Option<Token> {
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

    /// Every token that ends a generation.
    pub fn end_of_generation(&self) -> Vec<Token> {
        (0..i32::try_from(self.size).unwrap_or(0))
            // SAFETY: the vocabulary is alive and the token within it.
            .filter(|&token| unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), token) })
            .filter_map(|token| Token::try_from(token).ok())
            .collect()
    }

    /// The chat template of the file.
    pub fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is alive; a null name asks for the default template.
        let text = unsafe { sys::llama_model_chat_template(self.as_ptr(), std::ptr::null()) };
        // SAFETY: a template that is not null is NUL-terminated and lives as long as the model.
        (!text.is_null())
            .then(|| {
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|text| !text.is_empty())
    }

    /// Text to tokens. With `special`, control tokens written in the text are read as such. Adds
    /// no token at the beginning or end. `None` if the text is longer than 2 GiB.
    pub fn tokenize(&self, text: &str, special: bool) -> Option<Vec<Token>> {
        let length = i32::try_from(text.len()).ok()?;
        if length == 0 {
            return Some(Vec::new());
        }
        // A token stands for a byte at least; some vocabularies put a space before the text.
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
            // A negative answer is the number of tokens that are needed.
            tokens.resize(usize::try_from(count.checked_neg()?).ok()?, 0);
        }
        None
    }

    /// The bytes of a token; empty for control tokens unless `special`, and for tokens that the
    /// vocabulary has not.
    pub fn piece(&self, token: Token, special: bool) -> &[u8] {
        self.pieces.get(token, special)
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
            // A negative answer is the number of bytes that are needed.
            buffer.resize(length.unsigned_abs() as usize, 0);
        }
    }
}

fn gone(device: &str) -> LoadError {
    LoadError::Config(format!(
        "there is no device {device}; `corral doctor` says which there are"
    ))
}

/// What llama.cpp calls while it loads; false makes it give up.
unsafe extern "C" fn on_progress(part: f32, data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Progress` that `Model::load` borrows until llama.cpp is done. Its
    // fields are atomic, so that others may look at it.
    let progress = unsafe { &*data.cast::<Progress>() };
    progress.reached(part);
    !progress.is_stopped()
}

/// The bytes of every token, read once: asking llama.cpp for each generated token would copy and
/// look up a cache under its own rules each time.
#[derive(Default)]
struct Pieces {
    bytes: Vec<u8>,
    /// Where the piece of token `i` begins; one more entry than tokens.
    starts: Vec<u32>,
    /// Control tokens and the bytes that name them, sorted by token.
    control: Vec<(Token, Box<[u8]>)>,
}

impl Pieces {
    fn read(model: &Model) -> Self {
        let mut pieces = Self::default();
        let mut buffer = Vec::new();
        pieces.starts.push(0);
        for token in 0..model.size {
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

/// Says what is wrong with a file that can't be a model, better than a parser deep inside would.
pub fn check_magic(path: &Path) -> Result<(), LoadError> {
    let unreadable = |cause| LoadError::Unreadable {
        path: path.to_owned(),
        cause,
    };
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(unreadable)?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(unreadable(error)),
        _ => Err(LoadError::NotGguf {
            path: path.to_owned(),
        }),
    }
}
