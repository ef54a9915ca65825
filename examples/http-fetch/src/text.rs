//! The text of an HTML page: enough for prose, no parser of HTML.

/// Elements whose content is no text of the page.
const HIDDEN: [&str; 4] = ["head", "noscript", "script", "style"];
/// Entities, apart from the many that prose hardly has.
const ENTITIES: [(&str, char); 6] = [
    ("&amp;", '&'),
    ("&apos;", '\''),
    ("&gt;", '>'),
    ("&lt;", '<'),
    ("&nbsp;", ' '),
    ("&quot;", '"'),
];

/// The words of a page in one line, without tags.
pub fn of_html(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        text += &rest[..start];
        text.push(' ');
        let tag = &rest[start + 1..];
        let name: String = tag
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        let name = name.to_ascii_lowercase();
        let end = match HIDDEN.contains(&name.as_str()) {
            // ASCII only changes its case, so positions stay.
            true => tag
                .to_ascii_lowercase()
                .find(&format!("</{name}"))
                .map(|at| at + 1),
            false if tag.starts_with("!--") => tag.find("-->").map(|at| at + 2),
            false => Some(0),
        };
        let end = end.and_then(|at| Some(at + tag[at..].find('>')?));
        rest = end.map_or("", |end| &tag[end + 1..]);
    }
    text += rest;
    let words = text.split_whitespace().map(decode);
    words.collect::<Vec<_>>().join(" ")
}

fn decode(word: &str) -> String {
    let mut decoded = String::new();
    let mut rest = word;
    while let Some(start) = rest.find('&') {
        decoded += &rest[..start];
        rest = &rest[start..];
        let known = ENTITIES.iter().find(|(name, _)| rest.starts_with(name));
        let (length, character) =
            known.map_or((1, '&'), |(name, character)| (name.len(), *character));
        decoded.push(character);
        rest = &rest[length..];
    }
    decoded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_scripts_are_no_text() {
        for (html, text) in [
            ("plain", "plain"),
            ("<p>One<br>two</p>\n<p>three</p>", "One two three"),
            ("<HEAD><title>a</title></HEAD><b class='x'>b</b>", "b"),
            (
                "a<script>if (1 < 2) { '<p>' }</script>b<!-- <p>no</p> -->c",
                "a b c",
            ),
            ("AT&amp;T&nbsp;&lt;3 & &unknown;", "AT&T <3 & &unknown;"),
            ("cut <off", "cut"),
            ("<script>never closed", ""),
        ] {
            assert_eq!(of_html(html), text, "{html}");
        }
    }
}
