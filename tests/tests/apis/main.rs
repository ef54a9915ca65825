//! The APIs of the plugins `openai` and `ollama`: requests, official clients, pictures and audio.

mod audio;
mod images;
mod long_answers;
mod openai_clients;
mod openai_manifest;
mod request_fields;
