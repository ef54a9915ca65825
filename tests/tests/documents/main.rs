//! What a checkout has beside the program: documents, examples, configuration of other programs, and packages.

mod chat_example;
mod ci;
mod documentation;
mod examples;
mod examples_agents;
mod kubernetes;
mod monitoring_stack;
mod packages;
mod reference_pages;
mod structure;
