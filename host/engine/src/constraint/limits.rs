//! The bounds on grammars, all in one place.

use std::time::Duration;

/// Bytes of a JSON schema.
pub const MAX_SCHEMA: usize = 256 << 10;
/// Bytes of a Lark or GBNF grammar. The memory to compile one can grow with the square of its length.
pub const MAX_GRAMMAR: usize = 32 << 10;
/// Bytes of a regular expression, also within a schema. The time to compile one can grow with the
/// square of its length.
pub const MAX_REGEX: usize = 16 << 10;
/// How deep groups of a GBNF grammar or a regular expression may nest. JSON has a bound in its parser.
pub const MAX_NESTING: u32 = 100;
/// How often something may be repeated at most where a count says so (`{m,n}`, `maxItems`,
/// `maxLength`), counts within counts multiplied.
pub const MAX_COUNT: u64 = 100_000;
/// How long a caller waits for a compilation at most.
pub const COMPILE_TIME: Duration = Duration::from_secs(5);
/// Compilations that run at the same time. One that takes too long keeps its place until it ends.
pub const COMPILERS: usize = 2;
/// Stack of a thread that compiles. Rules that call each other in a chain as long as
/// [`MAX_SCHEMA`] allows are compiled by recursion. Only what is used takes up memory.
pub const COMPILE_STACK: usize = 256 << 20;
/// Grammars that are kept compiled.
pub const MAX_CACHED: usize = 256;
/// Memory that the grammars that are kept may take, as estimated.
pub const MAX_CACHED_BYTES: usize = 128 << 20;
/// Memory of one compiled grammar, as estimated; every matcher begins with a copy of it.
pub const MAX_COMPILED_BYTES: usize = 32 << 20;
/// Memory of one matcher's lexer.
pub const MATCHER_BYTES: usize = 64 << 20;
/// Work for the lexer before the first token; llguidance does about 50,000 in a millisecond.
pub const INITIAL_LEXER_FUEL: u64 = 1_000_000;
/// Work for the lexer in one mask; llguidance does about 14,000 in a millisecond.
pub const STEP_LEXER_FUEL: u64 = 200_000;
/// Earley items made for one mask; llguidance makes about 20,000 in a millisecond.
pub const STEP_ITEMS: usize = 50_000;
/// Earley items between two terminals.
pub const ROW_ITEMS: usize = 2_000;
/// States of one matcher's lexer, of one to two kilobytes each.
pub const LEXER_STATES: usize = 30_000;
/// How long one call of a matcher may take: a mask, or going on by a token. The bounds on lexer and
/// items keep common steps far below; an ambiguous grammar can pass them by. Generous, since time goes by where
/// others have the processor, too.
pub const STEP_TIME: Duration = Duration::from_millis(250);
/// Symbols of a grammar once it is taken apart.
pub const GRAMMAR_SYMBOLS: usize = 500_000;
