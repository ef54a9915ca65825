//! What all generations have in common.

mod choices;
mod likely;
pub mod settings;
mod usage;

pub use choices::{Choices, check};
pub use likely::{Likely, Token, characters};
pub use settings::{Settings, check_number_of_texts};
pub use usage::Usage;
