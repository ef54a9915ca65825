//! Questions to which the right answer is known.

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
    /// As a plain prompt.
    pub fn question(self) -> String {
        format!("{}+{}=", self.a, self.b)
    }

    /// As the last line of a prompt of `length` tokens, which are characters here; see [`SURE`].
    pub fn question_in(self, length: usize) -> String {
        let question = self.question();
        let before = length.checked_sub(question.len() + 1);
        let before = before.expect("the question fits the length");
        let line = "The quiet owl looks at the river and the stone. ";
        line.chars().cycle().take(before).collect::<String>() + "\n" + &question
    }

    /// What the model has to say.
    pub fn answer(self) -> String {
        (self.a + self.b).to_string()
    }

    /// A request whose answer begins with what the model has to say, and goes on for `tokens`.
    pub fn long_request(self, tokens: usize) -> Value {
        json!({"prompt": self.question(), "ignore_end": true, "max_tokens": tokens})
    }
}

/// Sums that the model gets right after other text too: asked at 32, 100, 300, 600, 1,000, 2,000
/// and 3,000 tokens. Of others it misses a few there, as its card says.
pub const SURE: [Sum; 5] = [
    Sum { a: 12, b: 7 },
    Sum { a: 20, b: 22 },
    Sum { a: 3, b: 4 },
    Sum { a: 31, b: 27 },
    Sum { a: 45, b: 54 },
];

/// `count` different sums of numbers up to 99, the same ones every time.
pub fn some_sums(count: usize) -> Vec<Sum> {
    assert!(count <= 10_000, "there are no more than that");
    // 7,919 is prime to 10,000, so its multiples run through every pair once.
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

/// Does something with each sum, 32 at once. Panics if that does.
pub fn at_once(sums: &[Sum], each: impl Fn(Sum) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while let Some(sum) = sums.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(*sum);
                }
            });
        }
    });
}
