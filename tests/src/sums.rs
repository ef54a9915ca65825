//! Questions to which the right answer is known.

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

    /// What the model has to say.
    pub fn answer(self) -> String {
        (self.a + self.b).to_string()
    }
}

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
