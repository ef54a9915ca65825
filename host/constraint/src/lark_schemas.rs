//! The JSON schemas of a Lark grammar (`%json {…}`): checked and rewritten as a schema alone is.

use crate::json_schema::JsonSchema;
use crate::limits;
use serde_json::Value;
use std::ops::Range;

/// A Lark grammar with its schemas.
pub struct LarkSchemas<'t> {
    text: &'t str,
    embedded: Vec<EmbeddedSchema>,
}

/// A schema in the text of a grammar.
struct EmbeddedSchema {
    /// Where the schema stands in the text.
    place: Range<usize>,
    /// The name of its rule.
    rule: String,
    schema: JsonSchema,
}

impl<'t> LarkSchemas<'t> {
    /// Finds and checks the schemas; the error names the rule.
    pub fn parse(text: &'t str) -> Result<Self, String> {
        let mut embedded = Vec::new();
        let schemas = schemas(text);
        let of_schemas: usize = schemas.iter().map(|(place, _)| place.len()).sum();
        let of_rules = text.len() - of_schemas;
        if of_rules > limits::MAX_GRAMMAR_BYTES {
            return Err(format!(
                "the Lark grammar has {of_rules} bytes without its JSON schemas; it may have at most {}",
                limits::MAX_GRAMMAR_BYTES
            ));
        }
        if schemas.len() > limits::MAX_LARK_SCHEMAS {
            return Err(format!(
                "the Lark grammar has {} JSON schemas; it may have at most {}",
                schemas.len(),
                limits::MAX_LARK_SCHEMAS
            ));
        }
        for (place, schema) in schemas {
            let rule = rule_before(&text[..place.start]);
            let schema = JsonSchema::in_lark(schema).map_err(|error| in_rule(&rule, &error))?;
            embedded.push(EmbeddedSchema {
                place,
                rule,
                schema,
            });
        }
        Ok(Self { text, embedded })
    }

    /// The grammar with the rewritten schemas, which have as many lines as the original ones.
    pub fn rewritten(&self) -> Result<String, String> {
        let mut text = String::with_capacity(self.text.len());
        let mut end = 0;
        for one in &self.embedded {
            text += &self.text[end..one.place.start];
            let schema = one.schema.compilable().to_string();
            let lines = self.text[one.place.clone()].matches('\n').count();
            text += &schema[..schema.len() - 1];
            text.extend(std::iter::repeat_n('\n', lines));
            text.push('}');
            end = one.place.end;
        }
        text += &self.text[end..];
        if text.len() > limits::MAX_SCHEMA_BYTES {
            return Err(format!(
                "the Lark grammar is invalid: with its JSON schemas rewritten, it has {} bytes; it may \
                 have at most {}",
                text.len(),
                limits::MAX_SCHEMA_BYTES
            ));
        }
        Ok(text)
    }

    /// Ignores what llguidance refuses of the schemas, after it refused the grammar with this message. Compiles only
    /// schemas, not the grammar. Returns whether it refused one; an error if nothing can be ignored.
    pub fn relax(&mut self, message: &str) -> Result<bool, String> {
        let mut is_relaxed = false;
        for one in &mut self.embedded {
            // Each time it ignores a keyword, of which there is a limit, or ceases to express keywords by others.
            while one.schema.is_refused() {
                let relaxed = one.schema.relax(message);
                relaxed.map_err(|error| in_rule(&one.rule, &error))?;
                is_relaxed = true;
            }
        }
        Ok(is_relaxed)
    }

    /// The keywords that the grammar does not enforce: the name of the rule, and a JSON pointer.
    pub fn ignored(&self) -> impl Iterator<Item = String> {
        let embedded = self.embedded.iter();
        embedded.flat_map(|one| one.schema.ignored(&one.rule))
    }
}

/// The error of a schema.
fn in_rule(rule: &str, error: &str) -> String {
    format!("the JSON schema of the rule {rule} is invalid: {error}")
}

/// The name of the rule whose definition a text ends in.
fn rule_before(text: &str) -> String {
    let mut lines = text.lines().rev();
    let is_name = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    let name = lines.find_map(|line| {
        let line = line.trim_start_matches(['!', '?']);
        let name = &line[..line.find(|char| !is_name(char)).unwrap_or(line.len())];
        (!name.is_empty()).then_some(name)
    });
    name.unwrap_or_default().to_owned()
}

/// The schemas in a Lark grammar. A malformed text ends the search; llguidance reports it.
fn schemas(text: &str) -> Vec<(Range<usize>, Value)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find(['"', '/', '#', '<', '%']) {
        at += next;
        let rest = &text[at..];
        let length = match rest.as_bytes()[0] {
            b'"' => quoted_length(rest, b'"'),
            b'/' if rest.starts_with("//") => rest.find('\n'),
            b'/' => quoted_length(rest, b'/'),
            b'#' => rest.find('\n'),
            // The name of a control token, or an operator.
            b'<' => {
                match rest[1..].find(|char: char| "<>".contains(char) || char.is_whitespace()) {
                    Some(end) if rest[1 + end..].starts_with('>') => Some(end + 2),
                    _ => Some(1),
                }
            }
            _ => {
                let keywords = ["%json", "%regex", "%llguidance"];
                match keywords.iter().find(|keyword| rest.starts_with(**keyword)) {
                    None => Some(1),
                    Some(keyword) => {
                        let json = &rest[keyword.len()..];
                        let blank = json.len() - json.trim_start().len();
                        let mut values = serde_json::Deserializer::from_str(json).into_iter();
                        let Some(Ok(value)) = values.next() else {
                            break;
                        };
                        let start = at + keyword.len();
                        let end = start + values.byte_offset();
                        if *keyword == "%json" {
                            found.push((start + blank..end, value));
                        }
                        Some(end - at)
                    }
                }
            }
        };
        match length {
            Some(length) => at += length,
            None => break,
        }
    }
    found
}

/// The length of a string or regular expression with its delimiters.
fn quoted_length(text: &str, delimiter: u8) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = !is_escaped && byte == delimiter;
        is_escaped = !is_escaped && byte == b'\\';
        is_end
    })?;
    Some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_found_outside_of_other_tokens() {
        let text = "// %json {\"a\": 1}\n# %json {}\nstart: \"%json {} \\\" %json {}\" a /%json {}\\/%json {}/ b\n\
            \x20 | <|\"x/#|> %json {\"title\":\n \"é\"} <[1]> \"x\"\n\
            a: %json {} | %regex {\"substring_words\": \"%json {}\"}\n";
        let found = schemas(text);
        let found: Vec<_> = found
            .iter()
            .map(|(place, _)| (&text[place.clone()], rule_before(&text[..place.start])))
            .collect();
        assert_eq!(
            found,
            [
                ("{\"title\":\n \"é\"}", "start".to_owned()),
                ("{}", "a".to_owned())
            ]
        );
        for malformed in ["\"", "a: \"b", "a: /b", "%json", "%json {", "<", "%"] {
            assert_eq!(schemas(malformed), [], "{malformed}");
        }
    }

    #[test]
    fn rewritten_grammar_has_the_lines_of_the_original() {
        let text = "start: %json {\"not\": {\n\"type\":\n\"string\"}} \"x\"\na: \"b\"";
        let schemas = LarkSchemas::parse(text).unwrap();
        let rewritten = schemas.rewritten().unwrap();
        assert_eq!(rewritten.lines().nth(3), text.lines().nth(3));
        assert!(!rewritten.contains("not"), "{rewritten}");
    }
}
