//! `einsparse doctor`: prints the working features, and advice for the others.

use std::path::Path;
use std::process::Command;

use einsparse::cost::{Machine, RateSource};
use einsparse::driver::{self, DeviceFacts};
use einsparse::formats::{Csr, Dense, generate, reference};
use einsparse::module::{COMPILER, EmbeddedModule, MODULES, arch_for, is_native};
use einsparse::registry::{MODULE_NAMES, kernels};
use einsparse::{Context, ops};

use super::Result;

/// Prints the findings. Returns an error only if a feature that should work fails.
pub fn execute() -> Result<()> {
    say!("einsparse {}", env!("CARGO_PKG_VERSION"));
    modules();
    let gpus = gpus();
    compiler();
    data();
    let cpu = self_test(&Context::unchecked_cpu());
    report("CPU", &cpu);
    let mut broken = cpu.is_err();
    for gpu in gpus.iter().filter(|_| !MODULES.is_empty()) {
        let result =
            Context::cuda(gpu.ordinal).map_err(Into::into).and_then(|context| self_test(&context));
        report(&format!("GPU {}", gpu.ordinal), &result);
        // An unsupported GPU is not an error of the installation.
        broken |= result.is_err() && arch_for(gpu.compute_capability).is_ok();
    }
    let works = match (gpus.is_empty(), MODULES.is_empty()) {
        (false, false) => "expressions run on the GPU",
        (false, true) => {
            "expressions run on the CPU: there is a GPU, but this build holds no kernels"
        }
        (true, _) => "expressions run on the CPU: there is no GPU",
    };
    say!("result   {works}");
    match broken {
        true => Err("a self-test failed, see above".into()),
        false => Ok(()),
    }
}

fn report(place: &str, result: &Result<()>) {
    match result {
        Ok(()) => say!("test     {place}: sparse x dense on the karate club is exact"),
        Err(error) => say!("test     {place}: FAILED: {}", super::readable(&**error)),
    }
}

/// Runs a product of small integers, for which every device must return the same bits.
fn self_test(context: &Context) -> Result<()> {
    let pattern = generate::karate();
    let values = generate::small_integers::<f32>(pattern.columns().len(), 1);
    let b = Dense::new(vec![pattern.cols(), 32], generate::small_integers(pattern.cols() * 32, 2))?;
    let a = Csr::new(pattern, values)?;
    let c = ops::spmm(context, &a, &b)?.to_dense()?;
    let exact = reference::spmm(&a.into(), &b)?;
    match c.values().iter().zip(exact.values()).position(|(c, e)| f64::from(*c) != *e) {
        None => Ok(()),
        Some(at) => {
            Err(format!("element {at} is {}, not {}", c.values()[at], exact.values()[at]).into())
        }
    }
}

fn modules() {
    if MODULES.is_empty() {
        say!(
            "modules  none: this build has no GPU kernels. Run `cargo xtask setup`, then build again"
        );
    }
    for module in MODULE_NAMES.iter() {
        let rows = kernels().iter().filter(|row| row.module == *module).count();
        let built: Vec<String> = MODULES
            .iter()
            .filter(|m| m.name == *module)
            .map(|m| {
                let packed =
                    |code: Option<&[u8]>, what| Some(format!("{what} {} KiB", code?.len() >> 10));
                let parts = [packed(m.packed_ptx, "PTX"), packed(m.packed_cubin, "machine code")];
                let parts: Vec<String> = parts.into_iter().flatten().collect();
                format!("{} ({})", m.arch, parts.join(", "))
            })
            .collect();
        let built =
            if built.is_empty() { "not in this build".to_string() } else { built.join(", ") };
        say!("modules  {module}: {rows} kernels, {built}");
    }
    say!("         compiled by {}", COMPILER.unwrap_or("another build (EINSPARSE_PTX)"));
}

fn gpus() -> Vec<DeviceFacts> {
    let count = match driver::device_count() {
        Ok(count) => count,
        Err(error) => {
            say!("driver   none: {}", error.to_string().replace('\n', " "));
            say!(
                "         on a machine with an NVIDIA GPU install its driver; nothing else of CUDA is needed"
            );
            return Vec::new();
        }
    };
    match driver::driver_version() {
        Ok((major, minor)) => say!("driver   loaded, CUDA {major}.{minor}"),
        Err(error) => say!("driver   loaded, version unknown: {error}"),
    }
    if count == 0 {
        say!("GPU      the driver finds none; in a container, was it started with GPUs?");
    }
    let facts = |ordinal| match driver::device_facts(ordinal) {
        Ok(facts) => {
            let (major, minor) = facts.compute_capability;
            let code = arch_for(facts.compute_capability)
                .map_or_else(|e| e.to_string(), |a| format!("runs {}", a.name));
            say!(
                "GPU {ordinal}    {}: compute capability {major}.{minor} ({code}), {} multiprocessors, {:.0} GiB, L2 \
                 {} MiB",
                facts.name,
                facts.sms,
                facts.memory_bytes as f64 / f64::from(1 << 30),
                facts.l2_bytes >> 20
            );
            let has_code = |m: &&EmbeddedModule| {
                m.packed_cubin.is_some() && is_native(m.arch, facts.compute_capability)
            };
            if MODULES.iter().any(|m| has_code(&m)) {
                say!("         this build has machine code for it");
            } else {
                say!(
                    "         this build has PTX for it, which the driver compiles at the first use of a module: up to a \
                     minute for each"
                );
                say!(
                    "         the driver keeps what it compiled in CUDA_CACHE_PATH, ~/.nv/ComputeCache without it"
                );
            }
            let machine = Machine::of(&facts, facts.compute_capability);
            let source = match machine.rates {
                RateSource::Measured => "measured on such a GPU",
                RateSource::Datasheet => "from its datasheet; none was measured on such a GPU",
                RateSource::Scaled => "scaled from an H200; none was measured on such a GPU",
            };
            say!(
                "         kernels are chosen by {:.2} TB/s of memory and {:.0} TFLOP/s of f16 products, {source}",
                machine.hbm / 1e12,
                machine.wgmma.max(machine.mma) / 1e12
            );
            Some(facts)
        }
        Err(error) => {
            say!("GPU {ordinal}    {error}");
            None
        }
    };
    (0..count).filter_map(facts).collect()
}

/// Prints the compiler that a rebuild of the kernels would use. It is not needed to run kernels.
fn compiler() {
    let says = |program: &str, argument: &str| {
        let output =
            Command::new(program).arg(argument).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let rustc = says("rustc", "--version");
    let sources = says("rustc", "--print=sysroot").is_some_and(|root| {
        Path::new(&root).join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file()
    });
    match (rustc, sources) {
        (None, _) => say!("compiler no rustc on PATH; needed only to build the kernels again"),
        (Some(rustc), true) => say!("compiler {rustc} with rust-src: can build the kernels"),
        (Some(rustc), false) => {
            say!(
                "compiler {rustc} without rust-src: `cargo xtask setup` (or `rustup component add rust-src`) before"
            );
            say!("         the kernels can be built again");
        }
    }
    let ptxas = says("ptxas", "--version").and_then(|text| text.lines().last().map(str::to_string));
    match ptxas {
        Some(version) => say!("ptxas    {version}"),
        None => say!(
            "ptxas    not on PATH; without it (or `cargo xtask setup`) builds embed PTX, and the driver compiles it"
        ),
    }
}

fn data() {
    match std::env::var_os("EINSPARSE_DATA") {
        Some(folder) if Path::new(&folder).is_dir() => {
            say!("data     EINSPARSE_DATA = {}", Path::new(&folder).display())
        }
        Some(folder) => say!(
            "data     EINSPARSE_DATA = {} is not a directory: tests use generated inputs",
            Path::new(&folder).display()
        ),
        None => say!(
            "data     EINSPARSE_DATA is not set: tests and benches use data/ or generated inputs"
        ),
    }
}
