//! The prompt of `/infill`: text before and after the completion, and other files.

use corral_sdk::fields::Fields;
use corral_sdk::{Error, Model, Token};

use conversation::infill;

/// The fields of a request that make the prompt.
pub struct InfillInput {
    prefix: String,
    suffix: String,
    /// The text that the completion continues, after the prefix.
    prompt: String,
    /// Other files: names and texts.
    extra: Vec<(Option<String>, String)>,
}

/// Reads the fields.
pub fn read(fields: &mut Fields) -> Result<InfillInput, Error> {
    let prefix = fields.required_text("input_prefix")?;
    let suffix = fields.required_text("input_suffix")?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let path = fields.path("input_extra");
    let extra = fields.list("input_extra")?.unwrap_or_default();
    let extra = extra.into_iter().enumerate().map(|(index, file)| {
        let mut file = Fields::at(format!("{path}[{index}]"), file)?;
        let name = file.text("filename")?;
        let text = file.required_text("text")?;
        file.ignore_unknown(&["filename", "text"])?;
        Ok((name, text))
    });
    let extra = extra.collect::<Result<_, Error>>()?;
    Ok(InfillInput {
        prefix,
        suffix,
        prompt,
        extra,
    })
}

impl InfillInput {
    /// The prompt: the other files, then the text around the completion.
    pub fn tokens(&self, model: &Model) -> Result<Vec<Token>, Error> {
        let before = format!("{}{}", self.prefix, self.prompt);
        let around =
            infill::tokens(&before, &self.suffix, model).map_err(|error| match error.field() {
                Some("suffix") => Error::new(501, "unsupported", error.to_string()),
                _ => error,
            })?;
        let mut tokens = Vec::new();
        for (name, text) in &self.extra {
            // The token of models that were trained with several files.
            match model.tokenize_trusted("<|file_sep|>")?[..] {
                [separator] => {
                    tokens.push(separator);
                    let name = name.as_deref().unwrap_or("tmp");
                    tokens.extend(model.tokenize(&format!("{name}\n{text}"))?);
                }
                _ => tokens.extend(model.tokenize(&format!("\n\n--- snippet ---\n\n{text}"))?),
            }
        }
        tokens.extend(around);
        model.add_begin_token(&mut tokens);
        Ok(tokens)
    }
}
