//! Models end to end: `cargo run --release --example models -- NAME [--batch 1,32] [--scale 18] [--steps 20]
//! [--file weights.safetensors]`. Without a GPU a model is small and runs on the CPU. Without a name all models run and
//! are checked. `decode`, `encoder` and `mobilenet` accept weights of one file, or of several separated by commas.

mod all;

use all::common::{Arguments, Run};
use all::{MODELS, Model};
use einsparse::Context;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (name, arguments) = parse(std::env::args().skip(1))?;
    let context = Context::new();
    let toy = name.is_none() || !context.is_cuda();
    match (toy, context.is_cuda()) {
        (true, false) => println!("no GPU: toy sizes on the CPU, whose times say little"),
        (true, true) => println!("no model named: toy sizes"),
        (false, _) => println!("on {context}"),
    }
    let wanted = |(own, _): &&Model| name.as_ref().is_none_or(|n| n == own);
    let run = Run { context, toy, arguments, ..Run::default() };
    let mut found = MODELS.iter().filter(wanted).peekable();
    if found.peek().is_none() {
        let names = MODELS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(format!("no model of this name; there are {names}").into());
    }
    for (name, model) in found {
        println!("== {name}");
        model(&run)?;
    }
    Ok(())
}

/// Parses the model's name and its arguments.
fn parse(words: impl Iterator<Item = String>) -> Result<(Option<String>, Arguments), String> {
    let (mut name, mut all, mut words) = (None, Arguments::default(), words);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        let number = |text: &str| text.parse().map_err(|e| format!("{word}: {text}: {e}"));
        match word.as_str() {
            "--batch" => {
                let sizes = value()?.split(',').map(number).collect::<Result<_, _>>();
                all.batch = Some(sizes?);
            }
            "--scale" => all.scale = Some(number(&value()?)? as u32),
            "--file" => {
                all.file = Some(value()?.split(',').map(Into::into).collect());
            }
            "--steps" => all.steps = Some(number(&value()?)?),
            model if !model.starts_with('-') => name = Some(model.into()),
            other => {
                return Err(format!("{other}: --batch, --scale, --steps and --file are known"));
            }
        }
    }
    Ok((name, all))
}
