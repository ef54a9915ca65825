//! The agent's tools: a calculator and a search in a few facts. Errors are texts, so that the model can react.

use serde_json::{Value, json};

const FACTS: [&str; 4] = [
    "The old barn has 12 owls and 7 mice.",
    "The lighthouse was built in 1872 and has 199 steps.",
    "The ferry to the island takes 45 minutes.",
    "The village market opens at 8 on Saturdays.",
];

/// The tools as the chat template shows them to the model.
pub fn definitions() -> Vec<Value> {
    let tool = |name: &str, description: &str, parameter: &str| {
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}}})
    };
    vec![
        tool(
            "calculator",
            "Evaluates an arithmetic expression",
            "expression",
        ),
        tool("search", "Search for a text", "query"),
    ]
}

/// Runs a tool.
pub fn run(name: &str, arguments: &Value) -> String {
    let argument = |name: &str| arguments[name].as_str().unwrap_or_default();
    match name {
        "calculator" => match evaluate(argument("expression")) {
            Some(value) => value.to_string(),
            None => "error: expected numbers with + - * / between them".to_owned(),
        },
        "search" => search(argument("query")).to_owned(),
        _ => format!("error: there is no tool {name:?}; expected calculator or search"),
    }
}

/// The value of a sum of products, without parentheses.
fn evaluate(expression: &str) -> Option<f64> {
    let text: String = expression.split_whitespace().collect();
    let (mut rest, mut operator) = (text.as_str(), '+');
    let (mut sum, mut product) = (0.0, 0.0);
    loop {
        let sign = usize::from(rest.starts_with('-'));
        let is_end = |c: char| !c.is_ascii_digit() && c != '.';
        let end = rest[sign..].find(is_end).map_or(rest.len(), |at| sign + at);
        let number: f64 = rest[..end].parse().ok()?;
        match operator {
            '+' => (sum, product) = (sum + product, number),
            '-' => (sum, product) = (sum + product, -number),
            '*' => product *= number,
            '/' => product /= number,
            _ => return None,
        }
        let mut following = rest[end..].chars();
        match following.next() {
            Some(next) => (operator, rest) = (next, following.as_str()),
            None => return Some(sum + product).filter(|value| value.is_finite()),
        }
    }
}

/// The fact with the most words of the query.
fn search(query: &str) -> &'static str {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric());
        words
            .filter(|word| word.len() > 2)
            .map(str::to_lowercase)
            .collect()
    };
    let wanted = words(query);
    let score = |fact: &str| {
        let words = words(fact);
        wanted.iter().filter(|word| words.contains(word)).count()
    };
    let best = FACTS.into_iter().max_by_key(|fact| score(fact));
    best.filter(|fact| score(fact) > 0)
        .unwrap_or("nothing found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calculator_evaluates_sums_of_products() {
        let cases = [
            ("12+7", "19"),
            ("12 * 34 - 8 / 2", "404"),
            ("-3--5", "2"),
            ("1/4", "0.25"),
        ];
        for (expression, value) in cases {
            assert_eq!(run("calculator", &json!({"expression": expression})), value);
        }
        for wrong in ["", "1+", "2^3", "1/0", "owls", "1.2.3"] {
            let result = run("calculator", &json!({"expression": wrong}));
            assert!(result.starts_with("error: "), "{wrong}: {result}");
        }
    }

    #[test]
    fn search_finds_the_fact_with_most_words() {
        let body = json!({"query": "How many owls live in the barn?"});
        let found = run("search", &body);
        assert_eq!(found, FACTS[0]);
        let expected = "nothing found";
        assert_eq!(run("search", &json!({"query": "xylophones"})), expected);
    }
}
