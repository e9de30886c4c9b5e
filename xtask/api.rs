//! `cargo xtask api`: compares the public items of the library, as rustdoc lists them, with docs/api.txt.

use crate::cargo::{Result, cargo, doc_dir, root};
use std::collections::BTreeSet;
use std::fs;

const LISTING: &str = "docs/api.txt";

/// Compares docs/api.txt with the documentation of the library. `bless` writes the file instead.
pub fn api(bless: bool) -> Result<()> {
    let mut doc = cargo(["doc", "--no-deps", "--offline", "--package", "einsparse"]);
    if !doc.arg("--lib").status()?.success() {
        return Err("the documentation was not built".into());
    }
    let page = fs::read_to_string(doc_dir()?.join("einsparse/all.html"))?;
    let items = items(&page);
    let listing = root().join(LISTING);
    if bless {
        let lines: String = items.iter().map(|item| format!("{item}\n")).collect();
        return Ok(fs::write(listing, lines)?);
    }
    let text = fs::read_to_string(listing)?;
    let listed: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let new = items.difference(&listed).map(|item| format!("+ {item}"));
    let gone = listed.difference(&items).map(|item| format!("- {item}"));
    let differ: Vec<String> = new.chain(gone).collect();
    if differ.is_empty() {
        println!("{} public items, as {LISTING} lists them", items.len());
        return Ok(());
    }
    let words = "is not what is public; `cargo xtask api --bless` writes it, CHANGELOG.md says why";
    Err(format!("{LISTING} {words}:\n{}", differ.join("\n")).into())
}

/// Path and kind of each item on rustdoc's page of all items, as in `nn::Moe struct`.
fn items(page: &str) -> BTreeSet<String> {
    let item = |entry: &str| {
        let (link, rest) = entry.split_once("\">")?;
        let (path, _) = rest.split_once("</a>")?;
        let file = link.rsplit('/').next()?;
        let (kind, _) = file.split_once('.')?;
        Some(format!("{path} {kind}"))
    };
    let entries = page.split("<li><a href=\"").skip(1);
    entries.filter_map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::items;

    #[test]
    fn items_are_read_with_their_kinds() {
        let page = "<h3>Structs</h3><ul><li><a href=\"nn/struct.Moe.html\">nn::Moe</a></li>\
            <li><a href=\"macro.einsum.html\">einsum</a></li></ul>";
        let found: Vec<String> = items(page).into_iter().collect();
        assert_eq!(found, ["einsum macro", "nn::Moe struct"]);
    }
}
