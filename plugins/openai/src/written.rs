//! JSON that is made as it is written, so that a long answer stands in memory once.

use serde::{Serialize, Serializer};

/// A list of what an iterator gives, which the function makes anew each time.
pub struct List<F>(pub F);

impl<F, I> Serialize for List<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The same as an object, of pairs of names and values.
pub struct Members<F>(pub F);

impl<F, I, N, V> Serialize for Members<F>
where
    F: Fn() -> I,
    I: Iterator<Item = (N, V)>,
    N: Serialize,
    V: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map((self.0)())
    }
}
