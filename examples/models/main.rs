//! Models end to end: `cargo run --release --example models -- NAME [--batch 1,32] [--scale 18] [--steps 20]`. Without a
//! GPU a model is a toy on the CPU; without a name all are, and are checked.

mod common;
mod gcn;
mod graphs;
mod opt_relu;
mod products;
mod training;

use common::{Arguments, Run};
use einsparse::Context;

type Model = (&'static str, fn(&Run) -> einsparse::Result<()>);

const MODELS: [Model; 2] = [("gcn", training::run), ("opt_relu", opt_relu::run)];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let context = Context::new();
    let toy = arguments.name.is_none() || !context.is_cuda();
    match (toy, context.is_cuda()) {
        (true, false) => println!("no GPU: toy sizes on the CPU, whose times say little"),
        (true, true) => println!("no model named: toy sizes"),
        (false, _) => println!("on {context}"),
    }
    let wanted = |(name, _): &&Model| arguments.name.as_ref().is_none_or(|n| n == name);
    let run = Run {
        context,
        toy,
        arguments: arguments.clone(),
    };
    let mut found = MODELS.iter().filter(wanted).peekable();
    if found.peek().is_none() {
        let names = MODELS.map(|(name, _)| name).join(", ");
        return Err(format!("no model of this name; there are {names}").into());
    }
    for (name, model) in found {
        println!("== {name}");
        model(&run)?;
    }
    Ok(())
}
