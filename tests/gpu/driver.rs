//! Attributes of the kernels as the driver reports them, and the parts of the driver module that need a GPU.

use crate::support::{assert_error, gpu, gpu_alone, small};
use einsparse::driver::Event;
use einsparse::driver::{
    self, LaunchConfig, LoadedModule, Swizzle, TensorMap, TensorMapLayout, TensorMapType,
};
use einsparse::formats::{Csr, Dense, generate};
use einsparse::kernels::abi::SpmmParams;
use einsparse::kernels::table::ARCHS;
use einsparse::module::{EmbeddedModule, MODULES};
use einsparse::raw::DeviceMemory;
use einsparse::registry::{Row, WalkKind, Zeros, kernels};
use einsparse::{Error, Operand, Options, Precision, Stream, ZerosRule};

/// Registers, local and shared memory as loaded, and the residency that the cost model assumes.
#[test]
fn kernels_keep_their_resources() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device().unwrap();
    let facts = device.facts();
    let modules = device.modules();
    let hopper = device.machine().wgmma > 0.0;
    let here = |row: &&Row| modules.holds(row) && device.machine().lacks(row).is_none();
    for row in kernels().iter().filter(here) {
        let function = modules.function(row, row.shared_bytes).unwrap();
        let kernel = function.facts().unwrap();
        // Only tests compile kernels of other GPUs for this one, and those may spill.
        let own = modules.capability() == facts.compute_capability;
        assert!(!own || kernel.local_bytes == 0, "{} spills: {kernel:?}", row.name);
        assert!(kernel.max_threads >= row.threads, "{}: {kernel:?}", row.name);
        assert!(kernel.max_dynamic_smem_bytes >= row.shared_bytes, "{}: {kernel:?}", row.name);
        // The residency in the table was requested from the compiler for Hopper only.
        let wanted = if hopper { row.min_blocks } else { 1 };
        let registers = kernel.registers.next_multiple_of(8) * row.threads * wanted;
        assert!(
            registers <= facts.registers_per_sm,
            "{}: {} registers",
            row.name,
            kernel.registers
        );
        let resident = function.blocks_per_sm(row.threads, row.shared_bytes).unwrap();
        assert!(
            resident >= wanted,
            "{}: {resident} of {wanted} thread blocks fit a multiprocessor",
            row.name
        );
    }
}

/// A driver that is older than the machine code compiles the PTX: texts for the first and the last architecture compile
/// without local memory. `EINSPARSE_ARCH=sm_80` runs tests on the latter.
#[test]
fn texts_compile() {
    let Some(gpu) = gpu() else { return };
    let context = gpu.device().unwrap().context();
    let text = |family, arch| {
        let of = |m: &&EmbeddedModule| (m.name, m.arch) == (family, arch);
        let module = MODULES.iter().find(of).expect("an embedded module");
        module.ptx().map(Result::unwrap)
    };
    // The smallest families whose PTX is kept for Hopper only, and the most frequent product.
    let (first, last) = (&ARCHS[0], &ARCHS[ARCHS.len() - 1]);
    for (family, arch) in [("pit_sampled", first), ("sampled", first), ("spmm", last)] {
        let text =
            text(family, arch.name).unwrap_or_else(|| panic!("no text of {family}.{}", arch.name));
        let module = LoadedModule::from_ptx(context, &text).unwrap();
        let built = |row: &&Row| row.module == family && row.built_for(arch);
        for row in kernels().iter().filter(built) {
            let facts = module.function(row.name).unwrap().facts().unwrap();
            assert_eq!(facts.local_bytes, 0, "{} spills: {facts:?}", row.name);
        }
    }
}

#[test]
fn events_time_a_kernel() {
    // Kernels of other tests would be timed too.
    let Some(gpu) = gpu_alone() else { return };
    let a = generate::uniform(20_000, 20_000, 0.001, 1).unwrap();
    let values = vec![1.0f32; a.columns().len()];
    let a = gpu.upload(Csr::new(a, values).unwrap()).unwrap();
    let b = gpu.upload_dense(&Dense::<f32>::zeros([20_000, 128]).unwrap()).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let plan = gpu.plan(text).operands(&operands).build().unwrap();
    let mut c = gpu.zeros(plan.out_shape()).unwrap();
    let stream = gpu.stream().unwrap();
    gpu.device().unwrap().context().set_current().unwrap();
    let [start, end] = [Event::new().unwrap(), Event::new().unwrap()];
    start.record(stream.raw()).unwrap();
    for _ in 0..10 {
        plan.run(&operands, &mut c, &stream).unwrap();
    }
    end.record(stream.raw()).unwrap();
    end.synchronize().unwrap();
    assert!(stream.raw().is_done().unwrap() && !stream.raw().is_capturing().unwrap());
    let milliseconds = end.elapsed_ms(&start).unwrap();
    // 400,000 nonzeros x 128 columns take between a microsecond and a tenth of a second each.
    assert!((0.01..1000.0).contains(&milliseconds), "{milliseconds} ms");
}

#[test]
fn device_memory_is_checked() {
    let Some(gpu) = gpu() else { return };
    let context = gpu.device().unwrap().context();
    let stream = gpu.stream().unwrap();
    let memory = DeviceMemory::from_slice(context, &[1u32, 2, 3], stream.raw()).unwrap();
    let mut back = [0u32; 3];
    memory.read(&mut back, stream.raw()).unwrap();
    assert_eq!(back, [1, 2, 3]);
    let error = memory.write(&[0u32; 4], stream.raw()).unwrap_err();
    assert_error!(error, Error::Overflow { value: 16, limit: 12, .. });
    if small() {
        // compute-sanitizer counts a refused allocation as an error.
        return;
    }
    let wanted = 1usize << 50;
    let error = DeviceMemory::alloc(context, wanted).unwrap_err();
    let Error::OutOfMemory { wanted: said, free } = error else { panic!("{error}") };
    let info = driver::mem_get_info().unwrap();
    assert!(said == wanted as u64 && 0 < free && free <= info.total);
}

/// Selection on a GPU: forced, refused, strict, and TF32 only on request.
#[test]
fn the_choice_holds_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let blocks = generate::blocks(256, 256, (32, 32), 0.5, 1).unwrap();
    let values = vec![1.0f32; blocks.columns().len() * 32 * 32];
    let a = gpu.upload(einsparse::formats::Bsr::new(blocks, values).unwrap()).unwrap();
    let b = gpu.upload_dense(&Dense::<f32>::zeros([256, 64]).unwrap()).unwrap();
    let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = |options: &Options| {
        gpu.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).options(options).build()
    };
    let tf32 = Options::default().precision(Precision::Tf32);
    let plan_tf32 = plan(&tf32).unwrap();
    assert_eq!(plan_tf32.choice().candidates[0].zeros, Zeros::Dense);
    assert!(plan_tf32.to_string().contains("zeros = Dense"), "{plan_tf32}");
    for options in [Options::default(), tf32.zeros(ZerosRule::Strict)] {
        // If the options exclude Tensor Cores, the general family runs the product.
        let plan = plan(&options).unwrap();
        assert!(plan.variant().starts_with("einsum_"), "{plan}");
        assert_eq!(plan.choice().candidates[0].zeros, Zeros::Strict);
    }
}

/// Stream-ordered memory: allocated, filled, read and freed on one stream.
#[test]
fn memory_in_stream_order() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device().unwrap();
    if !device.facts().memory_pools {
        return crate::support::skipped("no memory pools", &device.facts().name);
    }
    let stream = gpu.stream().unwrap();
    device.context().set_current().unwrap();
    let address = driver::mem_alloc_async(4096, stream.raw()).unwrap();
    let mut found = vec![0u32; 1024];
    // SAFETY: 1,024 words were allocated; the copy is waited for; the address is freed once.
    unsafe {
        driver::memset_d32_async(address, 7, 1024, stream.raw()).unwrap();
        driver::copy_dtoh_async(&mut found, address, stream.raw()).unwrap();
        driver::mem_free_async(address, stream.raw()).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(found.iter().all(|&word| word == 7));
}

/// Tensor maps and clusters, which exist since Hopper.
#[test]
fn tensor_maps_and_clusters() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device().unwrap();
    if device.facts().compute_capability.0 < 9 {
        return crate::support::skipped("no tensor maps or clusters", &device.facts().name);
    }
    device.context().set_current().unwrap();
    let memory = DeviceMemory::alloc(device.context(), 64 * 64 * 2).unwrap();
    let layout = |tile| TensorMapLayout {
        element: TensorMapType::F16,
        extents: &[64, 64],
        strides: &[128],
        tile,
        steps: &[],
        swizzle: Swizzle::B128,
    };
    TensorMap::encode_tiled(memory.address(), &layout(&[64, 32])).unwrap();
    // The sanitizer runs the small sizes and counts every refused call as an error.
    if !small() {
        TensorMap::encode_tiled(memory.address() + 2, &layout(&[64, 32])).unwrap_err();
        TensorMap::encode_tiled(memory.address(), &layout(&[64, 512])).unwrap_err();
    }

    // A kernel without work items accesses no memory.
    let row = kernels().iter().find(|row| row.walk == WalkKind::Csr && row.parts == 1).unwrap();
    let function = device.modules().function(row, 0).unwrap();
    let params = no_work();
    let config = LaunchConfig {
        grid: [4, 1, 1],
        block: [row.threads, 1, 1],
        smem_bytes: 0,
        cluster: Some([2, 1, 1]),
        overlap_previous: true,
    };
    let stream = gpu.stream().unwrap();
    // SAFETY: the params struct is the family's; without items, no address is used.
    unsafe { function.launch(&config, stream.raw(), &params) }.unwrap();
    let odd = LaunchConfig { grid: [3, 1, 1], ..config };
    if !small() {
        // SAFETY: the params struct is the family's; without items, no address is used.
        unsafe { function.launch(&odd, stream.raw(), &params) }.unwrap_err();
    }
    stream.synchronize().unwrap();
}

fn no_work() -> SpmmParams {
    SpmmParams {
        items: 0,
        slots: 0,
        columns: 0,
        values: 0,
        b: 0,
        c: 0,
        bias: 0,
        partial: 0,
        counters: 0,
        spans: 0,
        alpha: 1.0,
        item_count: 0,
        n: 0,
        m: 0,
        k: 0,
        ldb_bytes: 0,
        ldc_bytes: 0,
        partial_columns: 0,
        flags: 0,
    }
}

/// A stream given only by its handle: the driver supplies its context, which may not be current on the thread.
#[test]
fn streams_of_any_kind_wait_for_each_other() {
    let Some(gpu) = gpu() else { return };
    let own = gpu.stream().unwrap();
    let other = gpu.stream().unwrap();
    let handle = other.raw().as_raw() as usize;
    // The context of a thread is not inherited by a new one.
    std::thread::scope(|threads| {
        let wait = threads.spawn(|| {
            // SAFETY: the stream outlives `raw`.
            let raw = unsafe { Stream::from_raw(handle as *mut _) };
            raw.wait_for(&raw).unwrap();
            raw.wait_for(&own).unwrap();
            own.wait_for(&raw).unwrap();
            // SAFETY: a null handle is the default stream.
            let default = unsafe { Stream::from_raw(std::ptr::null_mut()) };
            default.wait_for(&own).unwrap();
            own.wait_for(&default).unwrap();
        });
        wait.join().unwrap();
    });
    own.synchronize().unwrap();
}
