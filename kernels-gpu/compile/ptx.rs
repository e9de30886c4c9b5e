//! Text of a PTX module: its entries, and the launch bounds, for which rustc has no attribute.

use crate::{Error, Spec};

/// Returns the names of a module's entries, in order.
pub fn entries(ptx: &str) -> Vec<&str> {
    positions(ptx).map(|(name, _)| name).collect()
}

/// Returns each entry's name and the end of its parameter list.
fn positions(ptx: &str) -> impl Iterator<Item = (&str, usize)> {
    const DIRECTIVE: &str = ".entry ";
    ptx.match_indices(DIRECTIVE).filter_map(move |(at, _)| {
        let line = ptx[..at].rsplit('\n').next().unwrap_or("");
        let start = at + DIRECTIVE.len();
        let rest = &ptx[start..];
        let name = rest[..rest.find(['(', '\n'])?].trim();
        let end = start + rest.find(')')? + 1;
        (!line.contains("//")).then_some((name, end))
    })
}

/// Inserts `.maxntid` and `.minnctapersm` of the table's rows after the parameter list of each entry. Aligns the
/// parameter to 64 bytes, as tensor maps in it require. Without both bounds, ptxas ignores `setmaxnreg` and guesses the
/// register budget.
///
/// # Errors
/// [`Error::Table`] if the entries are not exactly those of `spec`.
pub fn with_launch_bounds(ptx: &str, spec: &Spec) -> Result<String, Error> {
    let found: Vec<(&str, usize)> = positions(ptx).collect();
    let row = |name: &str| spec.kernels.iter().find(|kernel| kernel.name == name);
    let missing =
        spec.kernels.iter().filter(|kernel| !found.iter().any(|(name, _)| *name == kernel.name));
    let missing: Vec<String> = missing.map(|kernel| kernel.name.clone()).collect();
    let unknown: Vec<String> = found
        .iter()
        .filter(|(name, _)| row(name).is_none())
        .map(|(name, _)| name.to_string())
        .collect();
    if !missing.is_empty() || !unknown.is_empty() {
        return Err(Error::Table { module: spec.name(), missing, unknown });
    }
    let mut text = String::with_capacity(ptx.len() + 64 * found.len());
    let mut done = 0;
    for (kernel, end) in found.iter().filter_map(|(name, end)| Some((row(name)?, *end))) {
        text.push_str(&ptx[done..end].replace(".param .align 8 .b8", ".param .align 64 .b8"));
        text.push_str(&format!("\n.maxntid {}, 1, 1", kernel.threads));
        if kernel.min_blocks > 0 {
            text.push_str(&format!("\n.minnctapersm {}", kernel.min_blocks));
        }
        done = end;
    }
    text.push_str(&ptx[done..]);
    Ok(text)
}

/// Instructions that require a newer PTX version than the one passed to rustc, and that version.
const NEWER: [(&str, &str); 5] = [
    (".row.col.f32.e4m3.", "8.4"),
    (".row.col.f32.e5m2.", "8.4"),
    ("wgmma.mma_async.sp.", "8.2"),
    ("mma.sp::ordered_metadata.", "8.5"),
    ("st.async.", "8.1"),
];

/// Sets the PTX version that the module's instructions require. Older drivers still accept modules without such
/// instructions.
pub fn with_version(ptx: String) -> String {
    let Some((_, version)) = NEWER.iter().find(|(word, _)| ptx.contains(word)) else {
        return ptx;
    };
    let line = ptx.lines().find(|line| line.starts_with(".version "));
    match line {
        Some(line) => ptx.replacen(line, &format!(".version {version}"), 1),
        None => ptx,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;

    const MODULE: &str = ".version 8.0\n\t// .globl\ta\n.visible .entry a(\n\t.param .align 8 .b8 a_param_0[16]\n)\n{\n\
        // calls .entry x(\n\tret;\n}\n.visible .entry b()\n{\n\tret;\n}\n";

    fn spec(names: &[&str]) -> Spec {
        let kernel = |name: &&str| Kernel {
            name: name.to_string(),
            source: "Csr F32".into(),
            threads: 128,
            min_blocks: 2,
        };
        Spec {
            module: "f".into(),
            family: "f".into(),
            arch: "sm_80".into(),
            kernels: names.iter().map(kernel).collect(),
            partial: false,
        }
    }

    #[test]
    fn bounds_follow_the_parameter_list() {
        assert_eq!(entries(MODULE), ["a", "b"]);
        let text = with_launch_bounds(MODULE, &spec(&["b", "a"])).unwrap();
        assert!(
            text.contains(".align 64 .b8 a_param_0[16]\n)\n.maxntid 128, 1, 1\n.minnctapersm 2\n{"),
            "{text}"
        );
        assert!(text.contains(".entry b()\n.maxntid 128, 1, 1\n.minnctapersm 2\n{"), "{text}");
        assert_eq!(text.matches(".maxntid").count(), 2);
    }

    #[test]
    fn sparse_wgmma_raises_the_version() {
        assert_eq!(with_version(MODULE.into()), MODULE);
        let text = with_version(MODULE.replace("ret;", "wgmma.mma_async.sp.sync;"));
        assert!(text.starts_with(".version 8.2\n"), "{text}");
    }

    #[test]
    fn rows_and_entries_must_be_the_same() {
        let error = with_launch_bounds(MODULE, &spec(&["a", "c"])).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "kernel table and PTX of f.sm_80 disagree: no entry for c no row for b");
    }
}
