//! Images and audio in chats.

#[cfg(feature = "jinja")]
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;

#[cfg(feature = "jinja")]
use crate::Model;
use crate::{Error, Sequence, Token};

/// Begins and ends a marker; no text that means something has it.
const MARK: char = '\u{f1000}';

/// An image of a chat: the bytes of a PNG, JPEG, GIF or WebP file, or audio: those of a WAV file. A text
/// stands for it in the messages.
///
/// ```
/// use corral_sdk::template::{Chat, ChatImage};
///
/// let image = ChatImage::new(b"the bytes of a file".to_vec());
/// let mut chat = Chat::new().message("user", &format!("{} What is this?", image.marker()));
/// chat.images.push(image);
/// ```
#[derive(Clone, PartialEq)]
pub struct ChatImage {
    marker: Rc<str>,
    file: Rc<[u8]>,
}

impl ChatImage {
    /// An image, whose marker no client can guess.
    pub fn new(file: Vec<u8>) -> Self {
        // Each `RandomState` has fresh random keys.
        let random = || RandomState::new().build_hasher().finish();
        let marker = format!("{MARK}{:016x}{:016x}{MARK}", random(), random());
        ChatImage {
            marker: marker.into(),
            file: file.into(),
        }
    }

    /// The text that stands for it in the content of a message.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// The bytes of its file.
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// Whether its file begins as a WAV file, as the host looks at it.
    pub fn is_audio(&self) -> bool {
        self.file.starts_with(b"RIFF") && self.file.get(8..12) == Some(b"WAVE")
    }
}

impl fmt::Debug for ChatImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatImage")
            .field("bytes", &self.file.len())
            .finish()
    }
}

/// Whether a token of a prompt stands for an image, which [`Sequence::append_prompt`] appends.
pub fn is_image(token: Token) -> bool {
    token > Token::MAX / 2
}

/// The image of a chat that a token of its prompt stands for.
pub fn image_of(token: Token, images: &[ChatImage]) -> Option<&ChatImage> {
    images.get((Token::MAX - token) as usize)
}

/// The token that stands for the image of this index.
#[cfg(feature = "jinja")]
fn placeholder(index: usize) -> Token {
    Token::MAX - u32::try_from(index).unwrap_or(Token::MAX / 4)
}

/// Tokenizes a template's text; each marker becomes one token that stands for its image.
#[cfg(feature = "jinja")]
pub(super) fn tokens(
    mut text: &str,
    images: &[ChatImage],
    model: &Model,
) -> Result<Vec<Token>, Error> {
    let indexes = images.iter().zip(0..);
    let indexes: HashMap<&str, usize> = indexes
        .map(|(image, index)| (image.marker(), index))
        .collect();
    let length = images.first().map_or(0, |image| image.marker().len());
    let mut tokens = Vec::new();
    loop {
        let found = text.match_indices(MARK).find_map(|(at, _)| {
            let marker = text.get(at..at + length)?;
            Some((at, *indexes.get(marker)?))
        });
        let Some((at, index)) = found else {
            if !text.is_empty() {
                tokens.extend(model.tokenize_trusted(text)?);
            }
            return Ok(tokens);
        };
        if at > 0 {
            tokens.extend(model.tokenize_trusted(&text[..at])?);
        }
        tokens.push(placeholder(index));
        text = &text[at + length..];
    }
}

impl Sequence {
    /// Appends the tokens of a [`Chat`](super::Chat) with its images and audio. If the host refuses a file,
    /// the error is a 400 with the code `invalid-image` or `invalid-audio`.
    pub async fn append_prompt(&self, tokens: &[Token], images: &[ChatImage]) -> Result<(), Error> {
        let mut rest = tokens;
        while let Some(at) = rest.iter().position(|token| is_image(*token)) {
            self.append_tokens(&rest[..at])?;
            let image = image_of(rest[at], images).ok_or_else(|| {
                Error::Invalid("the prompt refers to an image that is missing".to_owned())
            })?;
            let code = match image.is_audio() {
                true => "invalid-audio",
                false => "invalid-image",
            };
            let appended = self.append_image(image.file().to_vec()).await;
            appended.map_err(|error| match error {
                Error::Invalid(text) => Error::bad_request(code, text),
                other => other,
            })?;
            rest = &rest[at + 1..];
        }
        self.append_tokens(rest)
    }
}

#[cfg(all(test, feature = "jinja"))]
mod tests {
    use super::*;
    use crate::testing::Script;

    #[test]
    fn only_markers_of_the_chat_are_images() {
        let images = [b"a", b"b"].map(|file| ChatImage::new(file.to_vec()));
        let [one, two] = [0, 1].map(|index| images[index].marker());
        let other = ChatImage::new(Vec::new());
        let text = format!("x{two}{MARK}{one}{}{one}{MARK}", other.marker());
        let tokens = Script::new().run(async {
            let model = Model::open_default().await?;
            tokens(&text, &images, &model)
        });
        let tokens = tokens.unwrap();
        let placeholders = tokens.iter().filter(|token| is_image(**token));
        let indexes = placeholders.map(|token| Token::MAX - token);
        assert_eq!(indexes.collect::<Vec<_>>(), [1, 0, 0]);
        // The rest is text, a token for each byte.
        assert_eq!(tokens.len(), text.len() - 3 * (one.len() - 1));
    }
}
