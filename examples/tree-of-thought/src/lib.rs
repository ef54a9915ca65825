//! A tree of thought (Yao et al., 2023) over a puzzle: reach a target from the first number by adding
//! or subtracting others, each at most once. The model computes each step; the plugin proposes steps,
//! rates them, and returns to earlier ones.

use std::cmp::Reverse;

use corral_sdk::{Command, Constraint, Error, GenerateOptions, Model, Request, Response, Sequence};
use serde::Deserialize;
use serde_json::{Value, json};

corral_sdk::handler!(handle);
corral_sdk::command!(run);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Puzzle {
    /// 2 to 6 numbers from 0 to 99. The first one is the start.
    numbers: Vec<u32>,
    target: u32,
    /// A text before the steps, such as rules or solved puzzles.
    #[serde(default)]
    instructions: String,
    /// Most steps that the model computes.
    #[serde(default = "default_max_thoughts")]
    max_thoughts: usize,
    /// The number of digits of every result, which a constraint enforces; by default any text is possible, and what is no
    /// number is dropped.
    digits: Option<u32>,
}

fn default_max_thoughts() -> usize {
    100
}

/// A path in the tree.
struct Node {
    /// The instructions and the steps, each on a line.
    sequence: Sequence,
    steps: Vec<String>,
    /// The result of the last step.
    value: u32,
    /// The numbers that remain.
    rest: Vec<u32>,
}

async fn handle(mut request: Request) -> Result<Response, Error> {
    request.expect_method("POST")?;
    Ok(Response::json(&solve(&request.json().await?).await?))
}

async fn run(command: &mut Command) -> Result<(), Error> {
    let answer = solve(&command.json()?).await?;
    command.write(&format!("{answer}\n")).await
}

/// Searches depth first: of the paths not yet followed, the best of those made last.
async fn solve(puzzle: &Puzzle) -> Result<Value, Error> {
    let [start, rest @ ..] = &puzzle.numbers[..] else {
        return Err(invalid("there are no numbers; expected 2 to 6"));
    };
    if !(1..=5).contains(&rest.len()) || puzzle.numbers.iter().any(|&number| number > 99) {
        return Err(invalid("expected 2 to 6 `numbers` from 0 to 99"));
    }
    let model = Model::open_default().await?;
    let options = options(&model, puzzle.digits).await?;
    let sequence = model.sequence()?;
    sequence.append(&puzzle.instructions)?;
    let mut open = vec![Node {
        sequence,
        steps: Vec::new(),
        value: *start,
        rest: rest.to_vec(),
    }];
    let (mut thoughts, mut rollbacks, mut depth) = (0, 0, 0);
    while let Some(node) = open.pop() {
        // Following a path that is not a continuation of the last one. Its sequence still has its
        // state: nothing is computed again.
        rollbacks += usize::from(node.steps.len() < depth);
        depth = node.steps.len() + 1;
        if node.value == puzzle.target {
            return Ok(report(&node.steps, thoughts, rollbacks));
        }
        let proposals = propose(&node);
        if thoughts + proposals.len() > puzzle.max_thoughts {
            break;
        }
        thoughts += proposals.len();
        let mut next = think(&node, proposals, &options).await?;
        // The last one is followed first.
        next.sort_by_key(|node| Reverse(node.value.abs_diff(puzzle.target)));
        open.extend(next);
    }
    Ok(report(&[], thoughts, rollbacks))
}

/// The settings for a result.
async fn options(model: &Model, digits: Option<u32>) -> Result<GenerateOptions, Error> {
    let options = GenerateOptions::new(8).stop("\n");
    let Some(digits) = digits else {
        return Ok(options);
    };
    if !(1..=2).contains(&digits) {
        return Err(Error::bad_request(
            "invalid-digits",
            "expected 1 or 2 `digits`",
        ));
    }
    let number = Constraint::regex(model, &format!("[0-9]{{{digits}}}")).await?;
    Ok(options.constrain(&number))
}

fn invalid(detail: &str) -> Error {
    Error::bad_request("invalid-numbers", detail)
}

fn report(steps: &[String], thoughts: usize, rollbacks: usize) -> Value {
    json!({"solved": !steps.is_empty(), "steps": steps, "thoughts": thoughts, "rollbacks": rollbacks})
}

/// The possible steps: a question and the index of its number.
fn propose(node: &Node) -> Vec<(String, usize)> {
    let steps = node.rest.iter().enumerate().flat_map(|(index, number)| {
        ['+', '-'].map(|sign| (format!("{}{sign}{number}=", node.value), index))
    });
    steps.collect()
}

/// Asks the model for the results of all steps at once, each in a fork of the path. Drops results
/// that are no number from 0 to 99.
async fn think(
    node: &Node,
    proposals: Vec<(String, usize)>,
    options: &GenerateOptions,
) -> Result<Vec<Node>, Error> {
    let mut started = Vec::new();
    for (question, index) in proposals {
        let sequence = node.sequence.fork()?;
        sequence.append(&format!("\n{question}"))?;
        let length = sequence.len();
        let generation = sequence.generate(options)?;
        started.push((question, index, sequence, length, generation));
    }
    let mut nodes = Vec::new();
    for (question, index, sequence, length, generation) in started {
        let text = generation.text().await?;
        let Ok(value @ 0..=99) = text.trim().parse::<u32>() else {
            continue;
        };
        // The path goes on after the result: without the token that ended it.
        sequence.truncate(length)?;
        sequence.append(&value.to_string())?;
        let mut rest = node.rest.clone();
        rest.remove(index);
        let mut steps = node.steps.clone();
        steps.push(format!("{question}{value}"));
        nodes.push(Node {
            sequence,
            steps,
            value,
            rest,
        });
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corral_sdk::testing::Script;

    /// All sums and differences.
    fn script() -> Script {
        let mut script = Script::new();
        for (a, b) in (0..100).flat_map(|a| [5, 7, 20, 40, 45].map(|b| (a, b))) {
            script = script
                .answers(&format!("\n{a}+{b}="), &(a + b).to_string())
                .answers(&format!("\n{a}-{b}="), &(a - b).to_string());
        }
        script
    }

    fn ask(body: Value) -> Result<Value, Error> {
        let puzzle: Puzzle = serde_json::from_value(body).unwrap();
        script().run(solve(&puzzle))
    }

    #[test]
    fn best_step_first_needs_no_rollback() {
        let answer = ask(json!({"numbers": [20, 40, 5], "target": 65})).unwrap();
        assert_eq!(answer["steps"], json!(["20+40=60", "60+5=65"]));
        assert_eq!(answer["thoughts"], 6);
        assert_eq!(answer["rollbacks"], 0);
    }

    #[test]
    fn dead_end_returns_to_an_earlier_step() {
        let answer = ask(json!({"numbers": [12, 7, 45, 20], "target": 25})).unwrap();
        // 12+7 is nearer to 25 than 12+20, but leads nowhere.
        assert_eq!(answer["steps"], json!(["12+20=32", "32-7=25"]));
        assert_eq!(answer["thoughts"], 18);
        assert_eq!(answer["rollbacks"], 3);
    }

    #[test]
    fn search_ends_without_a_solution() {
        let answer = ask(json!({"numbers": [20, 40], "target": 99})).unwrap();
        // 20-40 is below 0, so one step remains.
        let expected = json!({"solved": false, "steps": [], "thoughts": 2, "rollbacks": 0});
        assert_eq!(answer, expected);
        let limited = json!({"numbers": [20, 40, 5, 7], "target": 98, "max_thoughts": 7});
        assert_eq!(ask(limited).unwrap()["thoughts"], 6);
    }

    #[test]
    fn constraint_gives_results_their_digits() {
        let script = Script::new()
            .grammar("[0-9]{2}", &["60", "07"])
            .answers("\n20+40=", "60")
            .answers("\n20-40=", "07");
        let ask = |digits: u32| {
            let puzzle = json!({"numbers": [20, 40], "target": 100, "digits": digits});
            let puzzle: Puzzle = serde_json::from_value(puzzle).unwrap();
            script.run(solve(&puzzle))
        };
        let answer = ask(2).unwrap();
        assert_eq!(answer["thoughts"], 2);
        assert_eq!(answer["rollbacks"], 1);
        for generation in script.generations() {
            let mut settings = generation.settings.iter();
            assert!(settings.any(|one| one == "constrain"), "{generation:?}");
        }
        assert_eq!(ask(3).unwrap_err().code(), "invalid-digits");
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for numbers in [
            json!([]),
            json!([1]),
            json!([1, 100]),
            json!([1, 1, 1, 1, 1, 1, 1]),
        ] {
            let error = ask(json!({"numbers": numbers, "target": 1})).unwrap_err();
            assert_eq!((error.status(), error.code()), (400, "invalid-numbers"));
        }
    }
}
