//! Sums: questions with known answers.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// `a+b=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum {
    /// From 0 to 99.
    pub a: u32,
    /// From 0 to 99.
    pub b: u32,
}

impl Sum {
    /// The sum as a plain prompt.
    pub fn question(self) -> String {
        format!("{}+{}=", self.a, self.b)
    }

    /// The sum as the last line of a prompt of `length` tokens (characters here). See [`RELIABLE_SUMS`].
    pub fn question_in(self, length: usize) -> String {
        let question = self.question();
        let before = length.checked_sub(question.len() + 1);
        let before = before.expect("the question fits the length");
        let line = "The quiet owl looks at the river and the stone. ";
        line.chars().cycle().take(before).collect::<String>() + "\n" + &question
    }

    /// The right answer.
    pub fn answer(self) -> String {
        (self.a + self.b).to_string()
    }

    /// A request of `tokens` tokens whose output begins with the right answer.
    pub fn long_request(self, tokens: usize) -> Value {
        json!({"prompt": self.question(), "ignore_eos": true, "max_tokens": tokens})
    }
}

/// Sums that the model answers correctly after 32, 100, 300, 600, 1,000, 2,000 and 3,000 tokens of other
/// text. It misses a few others there, as its card says.
pub const RELIABLE_SUMS: [Sum; 5] = [
    Sum { a: 12, b: 7 },
    Sum { a: 20, b: 22 },
    Sum { a: 3, b: 4 },
    Sum { a: 31, b: 27 },
    Sum { a: 45, b: 54 },
];

/// `count` distinct sums of numbers up to 99, the same in every run.
pub fn distinct_sums(count: usize) -> Vec<Sum> {
    assert!(count <= 10_000, "there are 10,000 sums");
    // 7,919 and 10,000 are coprime, so the multiples visit every pair once.
    (0..count as u32)
        .map(|number| {
            let pair = (number * 7_919 + 1_234) % 10_000;
            Sum {
                a: pair / 100,
                b: pair % 100,
            }
        })
        .collect()
}

/// Calls `each` for every item, on this many threads. Panics if a call panics.
pub fn concurrently<T: Sync>(threads: usize, items: &[T], each: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(item);
                }
            });
        }
    });
}
