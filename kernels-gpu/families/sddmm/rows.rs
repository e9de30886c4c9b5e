//! Kernels of the family `sddmm`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_sddmm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            sddmm {
                sampled "sampled" SampledParams Sampled {
                    sampled_f16_64: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_ROWS>>;
                    sampled_f16_64t: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_COLUMNS>>;
                    sampled_f16_32: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_ROWS>>;
                    sampled_f16_32t: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_COLUMNS>>;
                    sampled_f16_16: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_ROWS>>;
                    sampled_f16_16t: Block, F16, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_COLUMNS>>;
                    sampled_bf16_64: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_ROWS>>;
                    sampled_bf16_64t: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<64, BOTH_COLUMNS>>;
                    sampled_bf16_32: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_ROWS>>;
                    sampled_bf16_32t: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<32, BOTH_COLUMNS>>;
                    sampled_bf16_16: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_ROWS>>;
                    sampled_bf16_16t: Block, Bf16, Sampled<WINDOW_CHUNKS, WindowOf<16, BOTH_COLUMNS>>;
                }
                sampled_mma "sampled_mma" SampledParams Sampled {
                    sampled_mma_f16_64: Block, F16, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_f16_64_wide: Block, F16, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsyncWide>>;
                    sampled_mma_f16_64t: Block, F16, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                    sampled_mma_f16_64t_wide: Block, F16, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsyncWide>>;
                    sampled_mma_f16_16: Block, F16, Sampled<2, WindowOf<16, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_f16_16t: Block, F16, Sampled<2, WindowOf<16, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                    sampled_mma_bf16_64: Block, Bf16, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_bf16_64_wide: Block, Bf16, Sampled<2, WindowOf<64, BOTH_ROWS, MmaSync, CpAsyncWide>>;
                    sampled_mma_bf16_64t: Block, Bf16, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                    sampled_mma_bf16_64t_wide: Block, Bf16, Sampled<2, WindowOf<64, BOTH_COLUMNS, MmaQuarters, CpAsyncWide>>;
                    sampled_mma_bf16_16: Block, Bf16, Sampled<2, WindowOf<16, BOTH_ROWS, MmaSync, CpAsync>>;
                    sampled_mma_bf16_16t: Block, Bf16, Sampled<2, WindowOf<16, BOTH_COLUMNS, MmaQuarters, CpAsync>>;
                }
                sddmm "sddmm" SddmmParams Sampled {
                    sddmm_csr_f32_k32: Csr, F32, Dots<4, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_f32_k64: Csr, F32, Dots<4, 2, SegmentOf<8, 8, 4>>;
                    sddmm_csr_f32_k64_f4: Csr, F32, Dots<4, 2, SegmentOf<8, 4, 4>>;
                    sddmm_csr_f32_k128: Csr, F32, Dots<4, 2, SegmentOf<16, 8, 4>>;
                    sddmm_csr_f32_k256: Csr, F32, Dots<4, 2, SegmentOf<32, 8, 4>>;
                    sddmm_csr_f32_any32: Csr, F32, Dots<1, 4, SegmentOf<8, 4, 5>>;
                    sddmm_csr_f64_k16: Csr, F64, Dots<2, 1, SegmentOf<8, 8, 4>>;
                    sddmm_csr_f64_k64: Csr, F64, Dots<2, 2, SegmentOf<16, 4, 4>>;
                    sddmm_csr_f64_k128: Csr, F64, Dots<2, 2, SegmentOf<32, 4, 4>>;
                    sddmm_csr_f64_any32: Csr, F64, Dots<1, 4, SegmentOf<8, 4, 3>>;
                    sddmm_csr_f16_k64: Csr, F16, Dots<8, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_f16_k128: Csr, F16, Dots<8, 1, SegmentOf<16, 8, 5>>;
                    sddmm_csr_f16_k256: Csr, F16, Dots<8, 1, SegmentOf<32, 8, 5>>;
                    sddmm_csr_f16_any32: Csr, F16, Dots<1, 4, SegmentOf<8, 4, 5>>;
                    sddmm_csr_bf16_k64: Csr, Bf16, Dots<8, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_bf16_k128: Csr, Bf16, Dots<8, 1, SegmentOf<16, 8, 5>>;
                    sddmm_csr_bf16_k256: Csr, Bf16, Dots<8, 1, SegmentOf<32, 8, 5>>;
                    sddmm_csr_bf16_any32: Csr, Bf16, Dots<1, 4, SegmentOf<8, 4, 5>>;
                }
                sddmm_narrow "sddmm_narrow" SddmmParams SampledNarrow {
                    sddmm_csr_int8_k64: Csr, Int8, Dots<8, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_int8_k128: Csr, Int8, Dots<16, 1, SegmentOf<8, 8, 5>>;
                    sddmm_csr_int8_k256: Csr, Int8, Dots<16, 1, SegmentOf<16, 8, 5>>;
                    sddmm_csr_int8_any32: Csr, Int8, Dots<1, 4, SegmentOf<8, 4, 5>>;
                }
                sddmm_staged "sddmm_staged" SddmmStagedParams Sampled {
                    sddmm_staged_f32_k64: Csr, F32, StagedDots<2, 4, ShelfOf<8>>;
                    sddmm_staged_f32_k128: Csr, F32, StagedDots<2, 4, ShelfOf<16>>;
                    sddmm_staged_f32_k256: Csr, F32, StagedDots<2, 4, ShelfOf<32>>;
                    sddmm_staged_f32_k512: Csr, F32, StagedDots<4, 4, ShelfOf<32>>;
                }
                sddmm_staged_99k "sddmm_staged_99k" SddmmStagedParams Sampled {
                    sddmm_staged_f32_k64_99k: Csr, F32, StagedDots<2, 4, ShelfOf<8, 99>>;
                    sddmm_staged_f32_k128_99k: Csr, F32, StagedDots<2, 4, ShelfOf<16, 99>>;
                    sddmm_staged_f32_k256_99k: Csr, F32, StagedDots<2, 4, ShelfOf<32, 99>>;
                    sddmm_staged_f32_k512_99k: Csr, F32, StagedDots<4, 4, ShelfOf<32, 99>>;
                }
                sddmm_tiles "sddmm_tiles" SddmmTilesParams Sampled {
                    sddmm_tiles_f16_n256: Csr, F16, PickTile<4, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n128: Csr, F16, PickTile<2, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n64: Csr, F16, PickTile<1, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_f16_n256t: Csr, F16, PickTile<4, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_f16_n64t: Csr, F16, PickTile<1, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_bf16_n256: Csr, Bf16, PickTile<4, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_bf16_n128: Csr, Bf16, PickTile<2, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_bf16_n64: Csr, Bf16, PickTile<1, PickOf<BOTH_ROWS>>;
                    sddmm_tiles_bf16_n256t: Csr, Bf16, PickTile<4, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_bf16_n64t: Csr, Bf16, PickTile<1, PickOf<BOTH_COLUMNS>>;
                    sddmm_tiles_tf32_n128: Csr, Tf32, PickTile<2, PickOf<BOTH_ROWS, 4>>;
                    sddmm_tiles_tf32_n64: Csr, Tf32, PickTile<1, PickOf<BOTH_ROWS, 4>>;
                }
                sddmm_tiles_mma "sddmm_tiles_mma" SddmmTilesParams Sampled {
                    sddmm_tiles_mma_f16_n128: Csr, F16, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n128_wide: Csr, F16, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_f16_n128t: Csr, F16, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n128t_wide: Csr, F16, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_f16_n64: Csr, F16, PickTile<1, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_f16_n64t: Csr, F16, PickTile<1, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_bf16_n128: Csr, Bf16, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_bf16_n128_wide: Csr, Bf16, PickTile<2, PickOf<BOTH_ROWS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_bf16_n128t: Csr, Bf16, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_bf16_n128t_wide: Csr, Bf16, PickTile<2, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsyncWide>>;
                    sddmm_tiles_mma_bf16_n64: Csr, Bf16, PickTile<1, PickOf<BOTH_ROWS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_bf16_n64t: Csr, Bf16, PickTile<1, PickOf<BOTH_COLUMNS, 2, MmaSync, CpAsync>>;
                    sddmm_tiles_mma_tf32_n64: Csr, Tf32, PickTile<1, PickOf<BOTH_ROWS, 4, MmaSync, CpAsync>>;
                }
                pit_sampled "pit_sampled" PitSampledParams Dynamic {
                    pit_f16_sampled: Block, F16, PitSampled;
                    pit_bf16_sampled: Block, Bf16, PitSampled;
                }
                pit_sampled_mma "pit_sampled_mma" PitSampledParams Dynamic {
                    pit_f16_sampled_mma: Block, F16, PitSampled<MmaSync, CpAsync>;
                    pit_bf16_sampled_mma: Block, Bf16, PitSampled<MmaSync, CpAsync>;
                }
            }
        }
    };
}
