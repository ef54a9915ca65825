//! All limits on grammars. `compiler.rs` refuses a grammar that takes too long to compile, `matcher.rs` one that takes too
//! long to match.

use std::time::Duration;

/// Bytes of a JSON schema, or of a Lark grammar with its schemas.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// Bytes of a GBNF grammar, or of a Lark grammar without its JSON schemas. Compiling can take memory quadratic in the
/// length.
pub const MAX_GRAMMAR_BYTES: usize = 32 << 10;
/// JSON schemas of a Lark grammar, each with a rewriting of its own. A chat may have 128 tools.
pub const MAX_LARK_SCHEMAS: usize = 512;
/// Bytes of a regular expression, also within a schema. Compiling can take time quadratic in the
/// length.
pub const MAX_REGEX_BYTES: usize = 16 << 10;
/// Nesting depth of groups in a GBNF grammar or a regular expression. The JSON parser has its own.
pub const MAX_NESTING: u32 = 100;
/// The largest repetition count (`{m,n}`, `maxItems`, `maxLength`), nested counts multiplied.
pub const MAX_COUNT: u64 = 100_000;
/// How long a caller waits for its compilation to start and to end, together: one deadline for both.
pub const MAX_COMPILE_TIME: Duration = Duration::from_secs(5);
/// Hashes of one compilation, which measure its work: see the crate `work_limit` (`hasher/`). A schema of 4,000
/// properties needs 1.2 million. With the 60 bytes that some of them allocate, this also limits the memory.
pub const MAX_COMPILE_HASHES: u64 = 5_000_000;
/// Why a grammar above the limits of a compilation is refused.
pub const TOO_MUCH_WORK: &str = "it takes too much work to compile; make it smaller";
/// Hashes of one call of a matcher, which all requests wait for: some 50 milliseconds.
pub const MAX_CALL_HASHES: u64 = 300_000;
/// Compilations at once.
pub const MAX_COMPILATIONS: usize = 2;
/// Properties of a JSON schema, all objects together. llguidance takes time quadratic in the optional ones of an
/// object.
pub const MAX_PROPERTIES: usize = 5_000;
/// Optional properties of an object with `minProperties`, of which llguidance lists all pairs.
pub const MAX_COUNTED_PROPERTIES: usize = 100;
/// Patterns in one `patternProperties`. llguidance compares all pairs.
pub const MAX_PATTERN_PROPERTIES: usize = 128;
/// `multipleOf` without its decimal point. The lexer has a state for each remainder.
pub const MAX_MULTIPLE_OF: f64 = 100_000.0;
/// Decimals of `multipleOf`.
pub const MAX_MULTIPLE_OF_DECIMALS: u32 = 8;
/// Stack of a compiling thread, of which only the used part takes memory. Compiling is recursive, and
/// rules can call each other in a chain as long as [`MAX_SCHEMA_BYTES`] allows.
pub const COMPILE_STACK_BYTES: usize = 256 << 20;
/// Compiled grammars in the cache.
pub const MAX_CACHED: usize = 256;
/// Estimated memory of the compiled grammars in the cache.
pub const MAX_CACHED_BYTES: usize = 128 << 20;
/// Estimated memory of one compiled grammar; every matcher begins with a copy.
pub const MAX_COMPILED_BYTES: usize = 32 << 20;
/// Estimated memory of a model's compiled grammars and of the lexers of its matchers. One tenant may hold three quarters
/// of what the others leave. A schema of 1,200 properties takes 1.2 MB by this estimate, and a matcher of it some 3 MB of
/// the process.
pub const MAX_HELD_BYTES: usize = 512 << 20;
/// Memory of one matcher's lexer.
pub const MAX_MATCHER_BYTES: usize = 64 << 20;
/// Lexer work before the first token; llguidance does about 50,000 units per millisecond.
pub const MAX_INITIAL_LEXER_FUEL: u64 = 1_000_000;
/// Lexer work per mask; llguidance does about 14,000 units per millisecond.
pub const MAX_CALL_LEXER_FUEL: u64 = 200_000;
/// Earley items per mask; llguidance makes about 20,000 per millisecond.
pub const MAX_CALL_ITEMS: usize = 50_000;
/// Earley items between two terminals.
pub const MAX_ROW_ITEMS: usize = 2_000;
/// States of one matcher's lexer, of one to two kilobytes each.
pub const MAX_LEXER_STATES: usize = 30_000;
/// Duration of one call of a matcher. The limits on lexer and items keep usual calls far below;
/// ambiguous grammars can exceed it. It is long because it includes time when other threads run.
pub const MAX_CALL_TIME: Duration = Duration::from_millis(250);
/// Symbols of a grammar after expansion.
pub const MAX_GRAMMAR_SYMBOLS: usize = 500_000;
/// Steps of expressing the keywords of a schema that llguidance lacks by others: schemas negated and names read.
pub const MAX_EXPRESSION_WORK: usize = 10_000;
/// Bytes of the schemas that take the place of keywords which llguidance lacks, in one schema together.
pub const MAX_EXPRESSED_BYTES: usize = 64 << 10;
/// Alternatives that such keywords may give one value, multiplied; llguidance makes each of them, with
/// copies of the properties, which count towards [`MAX_PROPERTIES`].
pub const MAX_ALTERNATIVES: usize = 64;
/// Items of all orders of the constants of a `uniqueItems`, together.
pub const MAX_ARRANGED_ITEMS: usize = 1_000;
/// Keywords of a schema that are ignored because llguidance refuses them; each takes one more compilation.
pub const MAX_RELAXED_KEYWORDS: usize = 16;
/// Ignored keywords that a constraint names; one more entry counts the others.
pub const MAX_IGNORED: usize = 32;
/// Bytes of the name of an ignored keyword.
pub const MAX_IGNORED_BYTES: usize = 200;
