//! The list of kernels. One row is one kernel: name, walk, element, tile. This is the only place
//! where a kernel's name exists; device entries, launch bounds and the host's registry expand it.

/// Calls `$m!` with every row, grouped by family: module, name of its `cfg`, params struct, least architecture, operation.
#[macro_export]
macro_rules! for_each_kernel {
    ($m:ident) => {
        $m! {
            spmm "spmm" SpmmParams sm_80 Product {
                spmm_csr_f32_n32: Csr, F32, SubWarp<8, 4, 1, 8, 1>;
                spmm_csr_f32_n64: Csr, F32, SubWarp<16, 4, 1, 8, 1>;
                spmm_csr_f32_n128: Csr, F32, SubWarp<32, 4, 1, 8, 1>;
                spmm_csr_f32_n256: Csr, F32, SubWarp<32, 4, 2, 4, 1>;
                spmm_csr_f32_n32_s4: Csr, F32, SubWarp<8, 4, 1, 8, 4>;
                spmm_csr_f32_n64_s4: Csr, F32, SubWarp<16, 4, 1, 8, 4>;
                spmm_csr_f32_n128_s2: Csr, F32, SubWarp<32, 4, 1, 8, 2>;
                spmm_csr_f32_n128_s4: Csr, F32, SubWarp<32, 4, 1, 8, 4>;
                spmm_csr_f32_n256_s4: Csr, F32, SubWarp<32, 4, 2, 4, 4>;
                spmm_csr_f32_n128_l8: Csr, F32, SubWarp<8, 4, 4, 4, 1>;
                spmm_csr_f32_n128_l8_s4: Csr, F32, SubWarp<8, 4, 4, 4, 4>;
                spmm_csr_f32_n128_l16: Csr, F32, SubWarp<16, 4, 2, 4, 1>;
                spmm_csr_f32_n32_s8: Csr, F32, SubWarp<8, 4, 1, 8, 8>;
                spmm_csr_f32_n32_s16: Csr, F32, SubWarp<8, 4, 1, 8, 16>;
                spmm_csr_f32_n64_s8: Csr, F32, SubWarp<16, 4, 1, 8, 8>;
                spmm_csr_f32_n128_t512_s2: Csr, F32, SubWarp<8, 4, 4, 4, 2, 512>;
                spmm_csr_f32_n128_t512_s8: Csr, F32, SubWarp<8, 4, 4, 4, 8, 512>;
                spmm_csr_f32_any8: Csr, F32, SubWarp<8, 1, 1, 8, 1>;
                spmm_csr_f32_any32: Csr, F32, SubWarp<32, 1, 1, 8, 1>;
                spmm_csr_f32_any128: Csr, F32, SubWarp<32, 1, 4, 4, 1>;
                spmm_group_coo_f32_n32: GroupCoo, F32, SubWarp<8, 4, 1, 8, 1>;
                spmm_group_coo_f32_n64: GroupCoo, F32, SubWarp<16, 4, 1, 8, 1>;
                spmm_group_coo_f32_n128: GroupCoo, F32, SubWarp<32, 4, 1, 8, 1>;
                spmm_group_coo_f32_n256: GroupCoo, F32, SubWarp<32, 4, 2, 4, 1>;
                spmm_group_coo_f32_n32_s4: GroupCoo, F32, SubWarp<8, 4, 1, 8, 4>;
                spmm_group_coo_f32_n64_s4: GroupCoo, F32, SubWarp<16, 4, 1, 8, 4>;
                spmm_group_coo_f32_n128_s2: GroupCoo, F32, SubWarp<32, 4, 1, 8, 2>;
                spmm_group_coo_f32_n128_s4: GroupCoo, F32, SubWarp<32, 4, 1, 8, 4>;
                spmm_group_coo_f32_n256_s4: GroupCoo, F32, SubWarp<32, 4, 2, 4, 4>;
                spmm_group_coo_f32_any32: GroupCoo, F32, SubWarp<32, 1, 1, 8, 1>;

                spmm_csr_f64_n32: Csr, F64, SubWarp<16, 2, 1, 4, 1>;
                spmm_csr_f64_n64: Csr, F64, SubWarp<32, 2, 1, 4, 1>;
                spmm_csr_f64_n64_s4: Csr, F64, SubWarp<32, 2, 1, 4, 4>;
                spmm_csr_f64_n128: Csr, F64, SubWarp<32, 2, 2, 4, 1>;
                spmm_csr_f64_any8: Csr, F64, SubWarp<8, 1, 1, 8, 1>;
                spmm_csr_f64_any32: Csr, F64, SubWarp<32, 1, 1, 8, 1>;
                spmm_csr_f64_any128: Csr, F64, SubWarp<32, 1, 4, 4, 1>;
                spmm_group_coo_f64_n64: GroupCoo, F64, SubWarp<32, 2, 1, 4, 1>;
                spmm_group_coo_f64_n64_s4: GroupCoo, F64, SubWarp<32, 2, 1, 4, 4>;
                spmm_group_coo_f64_any32: GroupCoo, F64, SubWarp<32, 1, 1, 8, 1>;

                spmm_csr_f16_n32: Csr, F16, SubWarp<4, 8, 1, 8, 1>;
                spmm_csr_f16_n64: Csr, F16, SubWarp<8, 8, 1, 8, 1>;
                spmm_csr_f16_n128: Csr, F16, SubWarp<16, 8, 1, 8, 1>;
                spmm_csr_f16_n256: Csr, F16, SubWarp<32, 8, 1, 8, 1>;
                spmm_csr_f16_n64_s4: Csr, F16, SubWarp<8, 8, 1, 8, 4>;
                spmm_csr_f16_n128_s4: Csr, F16, SubWarp<16, 8, 1, 8, 4>;
                spmm_csr_f16_n256_s4: Csr, F16, SubWarp<32, 8, 1, 8, 4>;
                spmm_csr_f16_n128_l8: Csr, F16, SubWarp<8, 8, 2, 4, 1>;
                spmm_csr_f16_n128_l8_s4: Csr, F16, SubWarp<8, 8, 2, 4, 4>;
                spmm_csr_f16_n256_l16: Csr, F16, SubWarp<16, 8, 2, 4, 1>;
                spmm_csr_f16_n64_s8: Csr, F16, SubWarp<8, 8, 1, 8, 8>;
                spmm_csr_f16_n64_s16: Csr, F16, SubWarp<8, 8, 1, 8, 16>;
                spmm_csr_f16_any8: Csr, F16, SubWarp<8, 1, 1, 8, 1>;
                spmm_csr_f16_any32: Csr, F16, SubWarp<32, 1, 1, 8, 1>;
                spmm_csr_f16_any128: Csr, F16, SubWarp<32, 1, 4, 4, 1>;
                spmm_group_coo_f16_n64: GroupCoo, F16, SubWarp<8, 8, 1, 8, 1>;
                spmm_group_coo_f16_n128: GroupCoo, F16, SubWarp<16, 8, 1, 8, 1>;
                spmm_group_coo_f16_n256: GroupCoo, F16, SubWarp<32, 8, 1, 8, 1>;
                spmm_group_coo_f16_n64_s4: GroupCoo, F16, SubWarp<8, 8, 1, 8, 4>;
                spmm_group_coo_f16_n128_s4: GroupCoo, F16, SubWarp<16, 8, 1, 8, 4>;
                spmm_group_coo_f16_n256_s4: GroupCoo, F16, SubWarp<32, 8, 1, 8, 4>;
                spmm_group_coo_f16_any32: GroupCoo, F16, SubWarp<32, 1, 1, 8, 1>;

                spmm_csr_bf16_n32: Csr, Bf16, SubWarp<4, 8, 1, 8, 1>;
                spmm_csr_bf16_n64: Csr, Bf16, SubWarp<8, 8, 1, 8, 1>;
                spmm_csr_bf16_n128: Csr, Bf16, SubWarp<16, 8, 1, 8, 1>;
                spmm_csr_bf16_n256: Csr, Bf16, SubWarp<32, 8, 1, 8, 1>;
                spmm_csr_bf16_n64_s4: Csr, Bf16, SubWarp<8, 8, 1, 8, 4>;
                spmm_csr_bf16_n128_s4: Csr, Bf16, SubWarp<16, 8, 1, 8, 4>;
                spmm_csr_bf16_n256_s4: Csr, Bf16, SubWarp<32, 8, 1, 8, 4>;
                spmm_csr_bf16_n128_l8: Csr, Bf16, SubWarp<8, 8, 2, 4, 1>;
                spmm_csr_bf16_n128_l8_s4: Csr, Bf16, SubWarp<8, 8, 2, 4, 4>;
                spmm_csr_bf16_n256_l16: Csr, Bf16, SubWarp<16, 8, 2, 4, 1>;
                spmm_csr_bf16_n64_s8: Csr, Bf16, SubWarp<8, 8, 1, 8, 8>;
                spmm_csr_bf16_n64_s16: Csr, Bf16, SubWarp<8, 8, 1, 8, 16>;
                spmm_csr_bf16_any8: Csr, Bf16, SubWarp<8, 1, 1, 8, 1>;
                spmm_csr_bf16_any32: Csr, Bf16, SubWarp<32, 1, 1, 8, 1>;
                spmm_csr_bf16_any128: Csr, Bf16, SubWarp<32, 1, 4, 4, 1>;
                spmm_group_coo_bf16_n64: GroupCoo, Bf16, SubWarp<8, 8, 1, 8, 1>;
                spmm_group_coo_bf16_n128: GroupCoo, Bf16, SubWarp<16, 8, 1, 8, 1>;
                spmm_group_coo_bf16_n256: GroupCoo, Bf16, SubWarp<32, 8, 1, 8, 1>;
                spmm_group_coo_bf16_n64_s4: GroupCoo, Bf16, SubWarp<8, 8, 1, 8, 4>;
                spmm_group_coo_bf16_n128_s4: GroupCoo, Bf16, SubWarp<16, 8, 1, 8, 4>;
                spmm_group_coo_bf16_n256_s4: GroupCoo, Bf16, SubWarp<32, 8, 1, 8, 4>;
                spmm_group_coo_bf16_any32: GroupCoo, Bf16, SubWarp<32, 1, 1, 8, 1>;
            }
            mttkrp "mttkrp" MttkrpParams sm_80 Rows {
                mttkrp_f32_g1_n16: Csr, F32, Rows<1, 4, 4, 1, 4>;
                mttkrp_f32_g1_n32: Csr, F32, Rows<1, 8, 4, 1, 4>;
                mttkrp_f32_g1_n32_u8: Csr, F32, Rows<1, 8, 4, 1, 8>;
                mttkrp_f32_g1_n64: Csr, F32, Rows<1, 16, 4, 1, 4>;
                mttkrp_f32_g1_n128: Csr, F32, Rows<1, 32, 4, 1, 4>;
                mttkrp_f32_g1_any8: Csr, F32, Rows<1, 8, 1, 1, 4>;
                mttkrp_f32_g1_any32: Csr, F32, Rows<1, 32, 1, 1, 4>;
                mttkrp_f32_g2_n16: Csr, F32, Rows<2, 4, 4, 1, 4>;
                mttkrp_f32_g2_n32: Csr, F32, Rows<2, 8, 4, 1, 4>;
                mttkrp_f32_g2_n32_u8: Csr, F32, Rows<2, 8, 4, 1, 8>;
                mttkrp_f32_g2_n64: Csr, F32, Rows<2, 16, 4, 1, 4>;
                mttkrp_f32_g2_n128: Csr, F32, Rows<2, 32, 4, 1, 4>;
                mttkrp_f32_g2_any8: Csr, F32, Rows<2, 8, 1, 1, 4>;
                mttkrp_f32_g2_any32: Csr, F32, Rows<2, 32, 1, 1, 4>;
                mttkrp_f32_g3_n16: Csr, F32, Rows<3, 4, 4, 1, 4>;
                mttkrp_f32_g3_n32: Csr, F32, Rows<3, 8, 4, 1, 4>;
                mttkrp_f32_g3_n64: Csr, F32, Rows<3, 16, 4, 1, 4>;
                mttkrp_f32_g3_n128: Csr, F32, Rows<3, 32, 4, 1, 4>;
                mttkrp_f32_g3_any8: Csr, F32, Rows<3, 8, 1, 1, 4>;
                mttkrp_f32_g3_any32: Csr, F32, Rows<3, 32, 1, 1, 4>;
                mttkrp_f32_max_n32: Csr, F32, Rows<1, 8, 4, 1, 4, REDUCE_MAX>;
                mttkrp_f32_max_n128: Csr, F32, Rows<1, 32, 4, 1, 4, REDUCE_MAX>;
                mttkrp_f32_max_any32: Csr, F32, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                mttkrp_f64_g1_n16: Csr, F64, Rows<1, 8, 2, 1, 4>;
                mttkrp_f64_g1_n32: Csr, F64, Rows<1, 16, 2, 1, 4>;
                mttkrp_f64_g1_n64: Csr, F64, Rows<1, 32, 2, 1, 4>;
                mttkrp_f64_g1_any8: Csr, F64, Rows<1, 8, 1, 1, 4>;
                mttkrp_f64_g1_any32: Csr, F64, Rows<1, 32, 1, 1, 4>;
                mttkrp_f64_g2_n16: Csr, F64, Rows<2, 8, 2, 1, 4>;
                mttkrp_f64_g2_n32: Csr, F64, Rows<2, 16, 2, 1, 4>;
                mttkrp_f64_g2_n64: Csr, F64, Rows<2, 32, 2, 1, 4>;
                mttkrp_f64_g2_any8: Csr, F64, Rows<2, 8, 1, 1, 4>;
                mttkrp_f64_g2_any32: Csr, F64, Rows<2, 32, 1, 1, 4>;
                mttkrp_f64_g3_n16: Csr, F64, Rows<3, 8, 2, 1, 4>;
                mttkrp_f64_g3_n32: Csr, F64, Rows<3, 16, 2, 1, 4>;
                mttkrp_f64_g3_n64: Csr, F64, Rows<3, 32, 2, 1, 4>;
                mttkrp_f64_g3_any8: Csr, F64, Rows<3, 8, 1, 1, 4>;
                mttkrp_f64_g3_any32: Csr, F64, Rows<3, 32, 1, 1, 4>;
                mttkrp_f64_max_n32: Csr, F64, Rows<1, 16, 2, 1, 4, REDUCE_MAX>;
                mttkrp_f64_max_n64: Csr, F64, Rows<1, 32, 2, 1, 4, REDUCE_MAX>;
                mttkrp_f64_max_any32: Csr, F64, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                mttkrp_f16_g1_n32: Csr, F16, Rows<1, 4, 8, 1, 4>;
                mttkrp_f16_g1_n64: Csr, F16, Rows<1, 8, 8, 1, 4>;
                mttkrp_f16_g1_n128: Csr, F16, Rows<1, 16, 8, 1, 4>;
                mttkrp_f16_g1_any8: Csr, F16, Rows<1, 8, 1, 1, 4>;
                mttkrp_f16_g1_any32: Csr, F16, Rows<1, 32, 1, 1, 4>;
                mttkrp_f16_g2_n32: Csr, F16, Rows<2, 4, 8, 1, 4>;
                mttkrp_f16_g2_n64: Csr, F16, Rows<2, 8, 8, 1, 4>;
                mttkrp_f16_g2_n128: Csr, F16, Rows<2, 16, 8, 1, 4>;
                mttkrp_f16_g2_any8: Csr, F16, Rows<2, 8, 1, 1, 4>;
                mttkrp_f16_g2_any32: Csr, F16, Rows<2, 32, 1, 1, 4>;
                mttkrp_f16_g3_n32: Csr, F16, Rows<3, 4, 8, 1, 4>;
                mttkrp_f16_g3_n64: Csr, F16, Rows<3, 8, 8, 1, 4>;
                mttkrp_f16_g3_n128: Csr, F16, Rows<3, 16, 8, 1, 4>;
                mttkrp_f16_g3_any8: Csr, F16, Rows<3, 8, 1, 1, 4>;
                mttkrp_f16_g3_any32: Csr, F16, Rows<3, 32, 1, 1, 4>;
                mttkrp_f16_max_n32: Csr, F16, Rows<1, 4, 8, 1, 4, REDUCE_MAX>;
                mttkrp_f16_max_n128: Csr, F16, Rows<1, 16, 8, 1, 4, REDUCE_MAX>;
                mttkrp_f16_max_any32: Csr, F16, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                mttkrp_bf16_g1_n32: Csr, Bf16, Rows<1, 4, 8, 1, 4>;
                mttkrp_bf16_g1_n64: Csr, Bf16, Rows<1, 8, 8, 1, 4>;
                mttkrp_bf16_g1_n128: Csr, Bf16, Rows<1, 16, 8, 1, 4>;
                mttkrp_bf16_g1_any8: Csr, Bf16, Rows<1, 8, 1, 1, 4>;
                mttkrp_bf16_g1_any32: Csr, Bf16, Rows<1, 32, 1, 1, 4>;
                mttkrp_bf16_g2_n32: Csr, Bf16, Rows<2, 4, 8, 1, 4>;
                mttkrp_bf16_g2_n64: Csr, Bf16, Rows<2, 8, 8, 1, 4>;
                mttkrp_bf16_g2_n128: Csr, Bf16, Rows<2, 16, 8, 1, 4>;
                mttkrp_bf16_g2_any8: Csr, Bf16, Rows<2, 8, 1, 1, 4>;
                mttkrp_bf16_g2_any32: Csr, Bf16, Rows<2, 32, 1, 1, 4>;
                mttkrp_bf16_g3_n32: Csr, Bf16, Rows<3, 4, 8, 1, 4>;
                mttkrp_bf16_g3_n64: Csr, Bf16, Rows<3, 8, 8, 1, 4>;
                mttkrp_bf16_g3_n128: Csr, Bf16, Rows<3, 16, 8, 1, 4>;
                mttkrp_bf16_g3_any8: Csr, Bf16, Rows<3, 8, 1, 1, 4>;
                mttkrp_bf16_g3_any32: Csr, Bf16, Rows<3, 32, 1, 1, 4>;
                mttkrp_bf16_max_n32: Csr, Bf16, Rows<1, 4, 8, 1, 4, REDUCE_MAX>;
                mttkrp_bf16_max_n128: Csr, Bf16, Rows<1, 16, 8, 1, 4, REDUCE_MAX>;
                mttkrp_bf16_max_any32: Csr, Bf16, Rows<1, 32, 1, 1, 4, REDUCE_MAX>;
                mttkrp_f32_dots2_r32: Csr, F32, RowDots<2, 8, 4>;
                mttkrp_f32_dots2_r128: Csr, F32, RowDots<2, 32, 4>;
                mttkrp_f32_dots2_any: Csr, F32, RowDots<2, 8, 1>;
                mttkrp_f32_dots3_r32: Csr, F32, RowDots<3, 8, 4>;
                mttkrp_f32_dots3_r128: Csr, F32, RowDots<3, 32, 4>;
                mttkrp_f32_dots3_any: Csr, F32, RowDots<3, 8, 1>;
                mttkrp_f32_dots1_any: Csr, F32, RowDots<1, 8, 1>;
                mttkrp_f64_dots2_r32: Csr, F64, RowDots<2, 16, 2>;
                mttkrp_f64_dots2_any: Csr, F64, RowDots<2, 8, 1>;
                mttkrp_f64_dots3_r32: Csr, F64, RowDots<3, 16, 2>;
                mttkrp_f64_dots3_any: Csr, F64, RowDots<3, 8, 1>;
                mttkrp_f64_dots1_any: Csr, F64, RowDots<1, 8, 1>;
                mttkrp_f16_dots2_r32: Csr, F16, RowDots<2, 4, 8>;
                mttkrp_f16_dots2_r128: Csr, F16, RowDots<2, 16, 8>;
                mttkrp_f16_dots2_any: Csr, F16, RowDots<2, 8, 1>;
                mttkrp_f16_dots3_r32: Csr, F16, RowDots<3, 4, 8>;
                mttkrp_f16_dots3_r128: Csr, F16, RowDots<3, 16, 8>;
                mttkrp_f16_dots3_any: Csr, F16, RowDots<3, 8, 1>;
                mttkrp_f16_dots1_any: Csr, F16, RowDots<1, 8, 1>;
                mttkrp_bf16_dots2_r32: Csr, Bf16, RowDots<2, 4, 8>;
                mttkrp_bf16_dots2_r128: Csr, Bf16, RowDots<2, 16, 8>;
                mttkrp_bf16_dots2_any: Csr, Bf16, RowDots<2, 8, 1>;
                mttkrp_bf16_dots3_r32: Csr, Bf16, RowDots<3, 4, 8>;
                mttkrp_bf16_dots3_r128: Csr, Bf16, RowDots<3, 16, 8>;
                mttkrp_bf16_dots3_any: Csr, Bf16, RowDots<3, 8, 1>;
                mttkrp_bf16_dots1_any: Csr, Bf16, RowDots<1, 8, 1>;
            }
            relaxed "relaxed" SpmmParams sm_80 Relaxed {
                relaxed_csr_f32_n32: Csr, F32, Relaxed<8, 4, 1, 8>;
                relaxed_csr_f32_n128: Csr, F32, Relaxed<32, 4, 1, 8>;
                relaxed_csr_f32_n128_l16: Csr, F32, Relaxed<16, 4, 2, 4>;
            }
            staged "staged" StagedParams sm_90a Product {
                staged_f32_w8_p8: SlicedEll, F32, Staged<8, 8>;
                staged_f32_w16: SlicedEll, F32, Staged<16, 1>;
                staged_f32_w16_p2: SlicedEll, F32, Staged<16, 2>;
                staged_f32_w16_p4: SlicedEll, F32, Staged<16, 4>;
                staged_f32_all: SlicedEll, F32, Resident<16>;
            }
            block "block" SpmmParams sm_80 Product {
                block_f16_b16: Block, F16, MmaTile<16, 1, 4, true>;
                block_f16_b32: Block, F16, MmaTile<32, 2, 4, true>;
                block_f16_b64: Block, F16, MmaTile<64, 2, 8, true>;
                block_f16_b16_any: Block, F16, MmaTile<16, 1, 4, false>;
                block_f16_b32_any: Block, F16, MmaTile<32, 2, 4, false>;
                block_f16_b64_any: Block, F16, MmaTile<64, 2, 8, false>;
                block_bf16_b16: Block, Bf16, MmaTile<16, 1, 4, true>;
                block_bf16_b32: Block, Bf16, MmaTile<32, 2, 4, true>;
                block_bf16_b64: Block, Bf16, MmaTile<64, 2, 8, true>;
                block_bf16_b16_any: Block, Bf16, MmaTile<16, 1, 4, false>;
                block_bf16_b32_any: Block, Bf16, MmaTile<32, 2, 4, false>;
                block_bf16_b64_any: Block, Bf16, MmaTile<64, 2, 8, false>;
                block_tf32_b16: Block, Tf32, MmaTile<16, 1, 4, true>;
                block_tf32_b32: Block, Tf32, MmaTile<32, 2, 4, true>;
                block_tf32_b64: Block, Tf32, MmaTile<64, 2, 8, true>;
                block_tf32_b16_any: Block, Tf32, MmaTile<16, 1, 4, false>;
                block_tf32_b32_any: Block, Tf32, MmaTile<32, 2, 4, false>;
                block_tf32_b64_any: Block, Tf32, MmaTile<64, 2, 8, false>;
            }
            vectors "vectors" VectorsParams sm_80 Product {
                vectors_f16_n64: Vector, F16, Vectors<4, 1, 1>;
                vectors_f16_n64_s8: Vector, F16, Vectors<1, 8, 1>;
                vectors_f16_n128: Vector, F16, Vectors<4, 1, 2>;
                vectors_f16_n128_s4: Vector, F16, Vectors<1, 4, 2>;
                vectors_bf16_n64: Vector, Bf16, Vectors<4, 1, 1>;
                vectors_bf16_n64_s8: Vector, Bf16, Vectors<1, 8, 1>;
                vectors_bf16_n128: Vector, Bf16, Vectors<4, 1, 2>;
                vectors_bf16_n128_s4: Vector, Bf16, Vectors<1, 4, 2>;
                vectors_tf32_n64: Vector, Tf32, Vectors<4, 1, 2, 4>;
                vectors_tf32_n64_s4: Vector, Tf32, Vectors<1, 4, 2, 4>;
            }
            vectors_narrow "vectors_narrow" VectorsParams sm_80 Narrow {
                vectors_int8_n128: WholeVector, Int8, NarrowVectors<4, 1, true>;
                vectors_int8_n128_s4: WholeVector, Int8, NarrowVectors<1, 4, true>;
                vectors_int8_n128_s8: WholeVector, Int8, NarrowVectors<1, 8, true>;
                vectors_int8_any: WholeVector, Int8, NarrowVectors<4, 1, false>;
            }
            wgmma "wgmma" WgmmaParams sm_90a Product {
                wgmma_f16_64x64_n256: Block, F16, Panel<64, 64, 4, PLAIN>;
                wgmma_f16_64x64_n128: Block, F16, Panel<64, 64, 2, PLAIN>;
                wgmma_f16_64x32_n256: Block, F16, Panel<64, 32, 4, IN_REGISTERS>;
                wgmma_f16_64x32_n128: Block, F16, Panel<64, 32, 2, IN_REGISTERS>;
                wgmma_f16_32x32_n256: Block, F16, Panel<32, 32, 4, IN_REGISTERS>;
                wgmma_f16_32x32_n128: Block, F16, Panel<32, 32, 2, IN_REGISTERS>;
                wgmma_f16_16x32_n256: Block, F16, Panel<16, 32, 4, IN_REGISTERS>;
                wgmma_f16_16x32_n128: Block, F16, Panel<16, 32, 2, IN_REGISTERS>;
                wgmma_f16_16x16_n256: Block, F16, Panel<16, 16, 4, IN_REGISTERS>;
                wgmma_f16_16x16_n128: Block, F16, Panel<16, 16, 2, IN_REGISTERS>;
                wgmma_f16_64x1_n256: Block, F16, Panel<64, 1, 4, COLUMN_PIECES>;
                wgmma_f16_32x1_n256: Block, F16, Panel<32, 1, 4, COLUMN_PIECES>;
                wgmma_f16_1x64_n256: Block, F16, Panel<1, 64, 4, PLAIN>;
                wgmma_bf16_64x64_n256: Block, Bf16, Panel<64, 64, 4, PLAIN>;
                wgmma_bf16_64x64_n128: Block, Bf16, Panel<64, 64, 2, PLAIN>;
                wgmma_bf16_64x32_n256: Block, Bf16, Panel<64, 32, 4, IN_REGISTERS>;
                wgmma_bf16_64x32_n128: Block, Bf16, Panel<64, 32, 2, IN_REGISTERS>;
                wgmma_bf16_32x32_n256: Block, Bf16, Panel<32, 32, 4, IN_REGISTERS>;
                wgmma_bf16_32x32_n128: Block, Bf16, Panel<32, 32, 2, IN_REGISTERS>;
                wgmma_bf16_16x32_n256: Block, Bf16, Panel<16, 32, 4, IN_REGISTERS>;
                wgmma_bf16_16x32_n128: Block, Bf16, Panel<16, 32, 2, IN_REGISTERS>;
                wgmma_bf16_16x16_n256: Block, Bf16, Panel<16, 16, 4, IN_REGISTERS>;
                wgmma_bf16_16x16_n128: Block, Bf16, Panel<16, 16, 2, IN_REGISTERS>;
                wgmma_bf16_64x1_n256: Block, Bf16, Panel<64, 1, 4, COLUMN_PIECES>;
                wgmma_bf16_32x1_n256: Block, Bf16, Panel<32, 1, 4, COLUMN_PIECES>;
                wgmma_bf16_1x64_n256: Block, Bf16, Panel<1, 64, 4, PLAIN>;
                wgmma_f16_64x64t_n256: Block, F16, Panel<64, 64, 4, A_COLUMNS>;
                wgmma_f16_64x64t_n128: Block, F16, Panel<64, 64, 2, A_COLUMNS>;
                wgmma_f16_32x32t_n256: Block, F16, Panel<32, 32, 4, COLUMN_PIECES>;
                wgmma_f16_16x16t_n256: Block, F16, Panel<16, 16, 4, COLUMN_PIECES>;
                wgmma_bf16_64x64t_n256: Block, Bf16, Panel<64, 64, 4, A_COLUMNS>;
                wgmma_bf16_64x64t_n128: Block, Bf16, Panel<64, 64, 2, A_COLUMNS>;
                wgmma_bf16_32x32t_n256: Block, Bf16, Panel<32, 32, 4, COLUMN_PIECES>;
                wgmma_bf16_16x16t_n256: Block, Bf16, Panel<16, 16, 4, COLUMN_PIECES>;
                wgmma_f16_64x64_nk_n256: Block, F16, Panel<64, 64, 4, B_COLUMNS>;
                wgmma_f16_64x64_left_n256: Block, F16, Panel<64, 64, 4, ON_THE_LEFT>;
                wgmma_f16_64x64t_left_n256: Block, F16, Panel<64, 64, 4, { A_COLUMNS | ON_THE_LEFT }>;
                wgmma_f16_64x64_nk_n128: Block, F16, Panel<64, 64, 2, B_COLUMNS>;
                wgmma_f16_64x64_left_n128: Block, F16, Panel<64, 64, 2, ON_THE_LEFT>;
                wgmma_f16_64x64t_left_n128: Block, F16, Panel<64, 64, 2, { A_COLUMNS | ON_THE_LEFT }>;
                wgmma_f16_32x32_left_n256: Block, F16, Panel<32, 32, 4, { IN_REGISTERS | ON_THE_LEFT }>;
                wgmma_f16_32x32t_left_n256: Block, F16, Panel<32, 32, 4, { COLUMN_PIECES | ON_THE_LEFT }>;
                wgmma_f16_16x16_left_n256: Block, F16, Panel<16, 16, 4, { IN_REGISTERS | ON_THE_LEFT }>;
                wgmma_f16_16x16t_left_n256: Block, F16, Panel<16, 16, 4, { COLUMN_PIECES | ON_THE_LEFT }>;
                wgmma_bf16_64x64_nk_n256: Block, Bf16, Panel<64, 64, 4, B_COLUMNS>;
                wgmma_bf16_64x64_left_n256: Block, Bf16, Panel<64, 64, 4, ON_THE_LEFT>;
                wgmma_bf16_64x64t_left_n256: Block, Bf16, Panel<64, 64, 4, { A_COLUMNS | ON_THE_LEFT }>;
                wgmma_bf16_64x64_nk_n128: Block, Bf16, Panel<64, 64, 2, B_COLUMNS>;
                wgmma_bf16_64x64_left_n128: Block, Bf16, Panel<64, 64, 2, ON_THE_LEFT>;
                wgmma_bf16_64x64t_left_n128: Block, Bf16, Panel<64, 64, 2, { A_COLUMNS | ON_THE_LEFT }>;
                wgmma_bf16_32x32_left_n256: Block, Bf16, Panel<32, 32, 4, { IN_REGISTERS | ON_THE_LEFT }>;
                wgmma_bf16_32x32t_left_n256: Block, Bf16, Panel<32, 32, 4, { COLUMN_PIECES | ON_THE_LEFT }>;
                wgmma_bf16_16x16_left_n256: Block, Bf16, Panel<16, 16, 4, { IN_REGISTERS | ON_THE_LEFT }>;
                wgmma_bf16_16x16t_left_n256: Block, Bf16, Panel<16, 16, 4, { COLUMN_PIECES | ON_THE_LEFT }>;
            }
            dense "dense" DenseParams sm_90a Product {
                dense_f16_64x64: Direct, F16, DenseTile<1, 1, 1>;
                dense_f16_64x64_k2: Direct, F16, DenseTile<1, 1, 2>;
                dense_f16_64x64_k4: Direct, F16, DenseTile<1, 1, 4>;
                dense_f16_64x64_k8: Direct, F16, DenseTile<1, 1, 8>;
                dense_f16_128x64: Direct, F16, DenseTile<2, 1, 1>;
                dense_f16_128x64_k2: Direct, F16, DenseTile<2, 1, 2>;
                dense_f16_128x64_k4: Direct, F16, DenseTile<2, 1, 4>;
                dense_f16_64x128: Direct, F16, DenseTile<1, 2, 1>;
                dense_f16_64x128_k2: Direct, F16, DenseTile<1, 2, 2>;
                dense_f16_64x128_k4: Direct, F16, DenseTile<1, 2, 4>;
                dense_f16_128x128: Direct, F16, DenseTile<2, 2, 1>;
                dense_f16_128x128_k2: Direct, F16, DenseTile<2, 2, 2>;
                dense_f16_128x128_k4: Direct, F16, DenseTile<2, 2, 4>;
                dense_f16_128x256_k2: Direct, F16, DenseTile<2, 4, 2>;
                dense_f16_128x256_k4: Direct, F16, DenseTile<2, 4, 4>;
                dense_bf16_64x64: Direct, Bf16, DenseTile<1, 1, 1>;
                dense_bf16_64x64_k2: Direct, Bf16, DenseTile<1, 1, 2>;
                dense_bf16_64x64_k4: Direct, Bf16, DenseTile<1, 1, 4>;
                dense_bf16_64x64_k8: Direct, Bf16, DenseTile<1, 1, 8>;
                dense_bf16_128x64: Direct, Bf16, DenseTile<2, 1, 1>;
                dense_bf16_128x64_k2: Direct, Bf16, DenseTile<2, 1, 2>;
                dense_bf16_128x64_k4: Direct, Bf16, DenseTile<2, 1, 4>;
                dense_bf16_64x128: Direct, Bf16, DenseTile<1, 2, 1>;
                dense_bf16_64x128_k2: Direct, Bf16, DenseTile<1, 2, 2>;
                dense_bf16_64x128_k4: Direct, Bf16, DenseTile<1, 2, 4>;
                dense_bf16_128x128: Direct, Bf16, DenseTile<2, 2, 1>;
                dense_bf16_128x128_k2: Direct, Bf16, DenseTile<2, 2, 2>;
                dense_bf16_128x128_k4: Direct, Bf16, DenseTile<2, 2, 4>;
                dense_bf16_128x256_k2: Direct, Bf16, DenseTile<2, 4, 2>;
                dense_bf16_128x256_k4: Direct, Bf16, DenseTile<2, 4, 4>;
                dense_tf32_64x64: Direct, Tf32, DenseTile<1, 1, 1, 4>;
                dense_tf32_64x64_k2: Direct, Tf32, DenseTile<1, 1, 2, 4>;
                dense_tf32_64x64_k4: Direct, Tf32, DenseTile<1, 1, 4, 4>;
                dense_tf32_64x64_k8: Direct, Tf32, DenseTile<1, 1, 8, 4>;
                dense_tf32_128x64: Direct, Tf32, DenseTile<1, 2, 1, 4>;
                dense_tf32_128x64_k2: Direct, Tf32, DenseTile<1, 2, 2, 4>;
                dense_tf32_128x64_k4: Direct, Tf32, DenseTile<1, 2, 4, 4>;
                dense_tf32_128x128: Direct, Tf32, DenseTile<2, 2, 1, 4>;
                dense_tf32_128x128_k2: Direct, Tf32, DenseTile<2, 2, 2, 4>;
                dense_tf32_128x128_k4: Direct, Tf32, DenseTile<2, 2, 4, 4>;
            }
            sampled "sampled" SampledParams sm_90a Sampled {
                sampled_f16_64: Block, F16, Sampled<64, BOTH_ROWS>;
                sampled_f16_64t: Block, F16, Sampled<64, BOTH_COLUMNS>;
                sampled_f16_32: Block, F16, Sampled<32, BOTH_ROWS>;
                sampled_f16_32t: Block, F16, Sampled<32, BOTH_COLUMNS>;
                sampled_f16_16: Block, F16, Sampled<16, BOTH_ROWS>;
                sampled_f16_16t: Block, F16, Sampled<16, BOTH_COLUMNS>;
                sampled_bf16_64: Block, Bf16, Sampled<64, BOTH_ROWS>;
                sampled_bf16_64t: Block, Bf16, Sampled<64, BOTH_COLUMNS>;
                sampled_bf16_32: Block, Bf16, Sampled<32, BOTH_ROWS>;
                sampled_bf16_32t: Block, Bf16, Sampled<32, BOTH_COLUMNS>;
                sampled_bf16_16: Block, Bf16, Sampled<16, BOTH_ROWS>;
                sampled_bf16_16t: Block, Bf16, Sampled<16, BOTH_COLUMNS>;
            }
            sddmm "sddmm" SddmmParams sm_80 Sampled {
                sddmm_csr_f32_k32: Csr, F32, Dots<8, 4, 1, 8, 5>;
                sddmm_csr_f32_k64: Csr, F32, Dots<8, 4, 2, 8, 4>;
                sddmm_csr_f32_k64_f4: Csr, F32, Dots<8, 4, 2, 4, 4>;
                sddmm_csr_f32_k128: Csr, F32, Dots<16, 4, 2, 8, 4>;
                sddmm_csr_f32_k256: Csr, F32, Dots<32, 4, 2, 8, 4>;
                sddmm_csr_f32_any32: Csr, F32, Dots<8, 1, 4, 4, 5>;
                sddmm_csr_f64_k16: Csr, F64, Dots<8, 2, 1, 8, 4>;
                sddmm_csr_f64_k64: Csr, F64, Dots<16, 2, 2, 4, 4>;
                sddmm_csr_f64_k128: Csr, F64, Dots<32, 2, 2, 4, 4>;
                sddmm_csr_f64_any32: Csr, F64, Dots<8, 1, 4, 4, 3>;
                sddmm_csr_f16_k64: Csr, F16, Dots<8, 8, 1, 8, 5>;
                sddmm_csr_f16_k128: Csr, F16, Dots<16, 8, 1, 8, 5>;
                sddmm_csr_f16_k256: Csr, F16, Dots<32, 8, 1, 8, 5>;
                sddmm_csr_f16_any32: Csr, F16, Dots<8, 1, 4, 4, 5>;
                sddmm_csr_bf16_k64: Csr, Bf16, Dots<8, 8, 1, 8, 5>;
                sddmm_csr_bf16_k128: Csr, Bf16, Dots<16, 8, 1, 8, 5>;
                sddmm_csr_bf16_k256: Csr, Bf16, Dots<32, 8, 1, 8, 5>;
                sddmm_csr_bf16_any32: Csr, Bf16, Dots<8, 1, 4, 4, 5>;
            }
            sddmm_narrow "sddmm_narrow" SddmmParams sm_80 SampledNarrow {
                sddmm_csr_int8_k64: Csr, Int8, Dots<8, 8, 1, 8, 5>;
                sddmm_csr_int8_k128: Csr, Int8, Dots<8, 16, 1, 8, 5>;
                sddmm_csr_int8_k256: Csr, Int8, Dots<16, 16, 1, 8, 5>;
                sddmm_csr_int8_k512: Csr, Int8, Dots<32, 16, 1, 8, 5>;
                sddmm_csr_int8_any32: Csr, Int8, Dots<8, 1, 4, 4, 5>;
            }
            sddmm_staged "sddmm_staged" SddmmStagedParams sm_90a Sampled {
                sddmm_staged_f32_k64: Csr, F32, StagedDots<8, 2, 4>;
                sddmm_staged_f32_k128: Csr, F32, StagedDots<16, 2, 4>;
                sddmm_staged_f32_k256: Csr, F32, StagedDots<32, 2, 4>;
                sddmm_staged_f32_k512: Csr, F32, StagedDots<32, 4, 4>;
            }
            sddmm_tiles "sddmm_tiles" SddmmTilesParams sm_90a Sampled {
                sddmm_tiles_f16_n256: Csr, F16, PickTile<4, BOTH_ROWS>;
                sddmm_tiles_f16_n128: Csr, F16, PickTile<2, BOTH_ROWS>;
                sddmm_tiles_f16_n64: Csr, F16, PickTile<1, BOTH_ROWS>;
                sddmm_tiles_f16_n256t: Csr, F16, PickTile<4, BOTH_COLUMNS>;
                sddmm_tiles_f16_n64t: Csr, F16, PickTile<1, BOTH_COLUMNS>;
                sddmm_tiles_bf16_n256: Csr, Bf16, PickTile<4, BOTH_ROWS>;
                sddmm_tiles_bf16_n128: Csr, Bf16, PickTile<2, BOTH_ROWS>;
                sddmm_tiles_bf16_n64: Csr, Bf16, PickTile<1, BOTH_ROWS>;
                sddmm_tiles_bf16_n256t: Csr, Bf16, PickTile<4, BOTH_COLUMNS>;
                sddmm_tiles_bf16_n64t: Csr, Bf16, PickTile<1, BOTH_COLUMNS>;
                sddmm_tiles_tf32_n128: Csr, Tf32, PickTile<2, BOTH_ROWS, 4>;
                sddmm_tiles_tf32_n64: Csr, Tf32, PickTile<1, BOTH_ROWS, 4>;
            }
            nm "nm" NmParams sm_90a Product {
                nm_f16_256x192: Nm, F16, TwoOfFour<2, 3>;
                nm_f16_128x128: Nm, F16, TwoOfFour<1, 2>;
                nm_f16_128x256: Nm, F16, TwoOfFour<1, 4>;
                nm_bf16_256x192: Nm, Bf16, TwoOfFour<2, 3>;
                nm_bf16_128x128: Nm, Bf16, TwoOfFour<1, 2>;
                nm_bf16_128x256: Nm, Bf16, TwoOfFour<1, 4>;
            }
            bitmap "bitmap" BitmapParams sm_90a Product {
                bitmap_f16_256x8_warps6: Bits, F16, WarpTile<8, 6, 4>;
                bitmap_f16_256x8_halves3: Bits, F16, WarpTile<8, 3, 2>;
                bitmap_f16_256x16_halves3: Bits, F16, WarpTile<16, 3, 2>;
                bitmap_f16_128x16: Bits, F16, BitTile<2, 16, true>;
                bitmap_f16_256x16: Bits, F16, BitTile<4, 16, true>;
                bitmap_f16_128x32: Bits, F16, BitTile<2, 32, true>;
                bitmap_f16_256x32: Bits, F16, BitTile<4, 32, true>;
                bitmap_f16_128x64: Bits, F16, BitTile<2, 64, true>;
                bitmap_f16_256x64: Bits, F16, BitTile<4, 64, true>;
                bitmap_f16_128x64_any: Bits, F16, BitTile<2, 64, false>;
                bitmap_bf16_256x8_warps6: Bits, Bf16, WarpTile<8, 6, 4>;
                bitmap_bf16_256x8_halves3: Bits, Bf16, WarpTile<8, 3, 2>;
                bitmap_bf16_256x16_halves3: Bits, Bf16, WarpTile<16, 3, 2>;
                bitmap_bf16_128x16: Bits, Bf16, BitTile<2, 16, true>;
                bitmap_bf16_256x16: Bits, Bf16, BitTile<4, 16, true>;
                bitmap_bf16_128x32: Bits, Bf16, BitTile<2, 32, true>;
                bitmap_bf16_256x32: Bits, Bf16, BitTile<4, 32, true>;
                bitmap_bf16_128x64: Bits, Bf16, BitTile<2, 64, true>;
                bitmap_bf16_256x64: Bits, Bf16, BitTile<4, 64, true>;
                bitmap_bf16_128x64_any: Bits, Bf16, BitTile<2, 64, false>;
                bytemap_f16_128x16: Bytes, F16, ByteTile<2, 16>;
                bytemap_f16_256x16: Bytes, F16, ByteTile<4, 16>;
                bytemap_f16_128x32: Bytes, F16, ByteTile<2, 32>;
                bytemap_f16_256x32: Bytes, F16, ByteTile<4, 32>;
                bytemap_f16_128x64: Bytes, F16, ByteTile<2, 64>;
                bytemap_f16_256x64: Bytes, F16, ByteTile<4, 64>;
                bytemap_bf16_128x16: Bytes, Bf16, ByteTile<2, 16>;
                bytemap_bf16_256x16: Bytes, Bf16, ByteTile<4, 16>;
                bytemap_bf16_128x32: Bytes, Bf16, ByteTile<2, 32>;
                bytemap_bf16_256x32: Bytes, Bf16, ByteTile<4, 32>;
                bytemap_bf16_128x64: Bytes, Bf16, ByteTile<2, 64>;
                bytemap_bf16_256x64: Bytes, Bf16, ByteTile<4, 64>;
            }
            prune "prune" PruneParams sm_80 Compression {
                prune_f16: Direct, F16, Word32;
                prune_bf16: Direct, Bf16, Word32;
                prune_int8: Direct, Int8, Word32;
            }
            tensor_product "tensor_product" TensorProductParams sm_80 TensorProduct {
                tensor_product_items_f32: Csr, F32, TensorItems;
                tensor_product_items_f64: Csr, F64, TensorItems;
                tensor_product_items_f16: Csr, F16, TensorItems;
                tensor_product_items_bf16: Csr, Bf16, TensorItems;
                tensor_product_channels_f32: Csr, F32, TensorChannels;
                tensor_product_channels_f64: Csr, F64, TensorChannels;
                tensor_product_channels_f16: Csr, F16, TensorChannels;
                tensor_product_channels_bf16: Csr, Bf16, TensorChannels;
                tensor_product_sums_f32: Csr, F32, TensorSums;
                tensor_product_sums_f64: Csr, F64, TensorSums;
                tensor_product_sums_f16: Csr, F16, TensorSums;
                tensor_product_sums_bf16: Csr, Bf16, TensorSums;
                tensor_product_connected_f32: Csr, F32, TensorConnected;
                tensor_product_connected_f64: Csr, F64, TensorConnected;
                tensor_product_connected_f16: Csr, F16, TensorConnected;
                tensor_product_connected_bf16: Csr, Bf16, TensorConnected;
                tensor_product_traces_f32: Csr, F32, TensorTraces;
                tensor_product_traces_f64: Csr, F64, TensorTraces;
                tensor_product_traces_f16: Csr, F16, TensorTraces;
                tensor_product_traces_bf16: Csr, Bf16, TensorTraces;
                tensor_product_weights_f32: Csr, F32, TensorWeights;
                tensor_product_weights_f64: Csr, F64, TensorWeights;
                tensor_product_weights_f16: Csr, F16, TensorWeights;
                tensor_product_weights_bf16: Csr, Bf16, TensorWeights;
                tensor_product_own_connected_f32: Csr, F32, TensorOwnConnected;
                tensor_product_own_connected_f64: Csr, F64, TensorOwnConnected;
                tensor_product_own_connected_f16: Csr, F16, TensorOwnConnected;
                tensor_product_own_connected_bf16: Csr, Bf16, TensorOwnConnected;
                tensor_product_own_traces_f32: Csr, F32, TensorOwnTraces;
                tensor_product_own_traces_f64: Csr, F64, TensorOwnTraces;
                tensor_product_own_traces_f16: Csr, F16, TensorOwnTraces;
                tensor_product_own_traces_bf16: Csr, Bf16, TensorOwnTraces;
                tensor_product_own_weights_f32: Csr, F32, TensorOwnWeights;
                tensor_product_own_weights_f64: Csr, F64, TensorOwnWeights;
                tensor_product_own_weights_f16: Csr, F16, TensorOwnWeights;
                tensor_product_own_weights_bf16: Csr, Bf16, TensorOwnWeights;
            }
            softmax "softmax" SoftmaxParams sm_80 Softmax {
                softmax_f32: Csr, F32, SoftmaxRows<4, 8, 4, false>;
                softmax_f16: Csr, F16, SoftmaxRows<8, 4, 2, false>;
                softmax_bf16: Csr, Bf16, SoftmaxRows<8, 4, 2, false>;
                softmax_gradient_f32: Csr, F32, SoftmaxRows<4, 8, 4, true>;
                softmax_gradient_f16: Csr, F16, SoftmaxRows<8, 4, 2, true>;
                softmax_gradient_bf16: Csr, Bf16, SoftmaxRows<8, 4, 2, true>;
            }
            levels "levels" LevelsParams sm_90a Teaching {
                level_0_loop: Direct, F16, Level<0>;
                level_1_shared: Direct, F16, Level<1>;
                level_2_mma: Direct, F16, Level<2>;
                level_3_wgmma: Direct, F16, Level<3>;
                level_4_ring: Direct, F16, Level<4>;
                level_5_roles: Direct, F16, Level<5>;
                level_6_persistent: Direct, F16, Level<6>;
            }
            convert "convert" ConvertParams sm_80 Convert {
                convert_score_f32: Direct, F32, Score<true>;
                convert_score_f64: Direct, F64, Score<true>;
                convert_score_f16: Direct, F16, Score<true>;
                convert_score_bf16: Direct, Bf16, Score<true>;
                convert_score_f32_any: Direct, F32, Score<false>;
                convert_score_f64_any: Direct, F64, Score<false>;
                convert_score_f16_any: Direct, F16, Score<false>;
                convert_score_bf16_any: Direct, Bf16, Score<false>;
                convert_select_f32: Direct, F32, Select;
                convert_select_f64: Direct, F64, Select;
                convert_tally_f32: Direct, F32, Tally;
                convert_tally_f64: Direct, F64, Tally;
                convert_index: Direct, F32, Index;
                convert_mark: Direct, F32, Mark;
                convert_fill_dense_16: Direct, F16, FillDense<true>;
                convert_fill_dense_32: Direct, F32, FillDense<true>;
                convert_fill_dense_64: Direct, F64, FillDense<true>;
                convert_fill_dense_16_any: Direct, F16, FillDense<false>;
                convert_fill_dense_32_any: Direct, F32, FillDense<false>;
                convert_fill_dense_64_any: Direct, F64, FillDense<false>;
                convert_fill_csr_16: Direct, F16, FillCsr;
                convert_fill_csr_32: Direct, F32, FillCsr;
                convert_fill_csr_64: Direct, F64, FillCsr;
            }
            scatter "scatter" ScatterParams sm_80 Scatter {
                scatter_16: Direct, F16, Four;
                scatter_32: Direct, F32, Four;
                scatter_64: Direct, F64, Four;
            }
            conv "conv" ConvParams sm_90a Convolution {
                conv_f16_n64: Direct, F16, Gathered<1, PLAIN>;
                conv_f16_n128: Direct, F16, Gathered<2, PLAIN>;
                conv_f16_turned_n64: Direct, F16, Gathered<1, B_COLUMNS>;
                conv_f16_turned_n128: Direct, F16, Gathered<2, B_COLUMNS>;
                conv_bf16_n64: Direct, Bf16, Gathered<1, PLAIN>;
                conv_bf16_n128: Direct, Bf16, Gathered<2, PLAIN>;
                conv_bf16_turned_n64: Direct, Bf16, Gathered<1, B_COLUMNS>;
                conv_bf16_turned_n128: Direct, Bf16, Gathered<2, B_COLUMNS>;
                conv_tf32_turned_n64: Direct, Tf32, Gathered<1, B_COLUMNS, 4>;
                conv_tf32_turned_n128: Direct, Tf32, Gathered<2, B_COLUMNS, 4>;
                conv_f16_n64_team: Direct, F16, Gathered<1, PLAIN, 2, 2>;
                conv_f16_n128_team: Direct, F16, Gathered<2, PLAIN, 2, 2>;
                conv_f16_turned_n64_team: Direct, F16, Gathered<1, B_COLUMNS, 2, 2>;
                conv_f16_turned_n128_team: Direct, F16, Gathered<2, B_COLUMNS, 2, 2>;
                conv_bf16_n64_team: Direct, Bf16, Gathered<1, PLAIN, 2, 2>;
                conv_bf16_n128_team: Direct, Bf16, Gathered<2, PLAIN, 2, 2>;
                conv_bf16_turned_n64_team: Direct, Bf16, Gathered<1, B_COLUMNS, 2, 2>;
                conv_bf16_turned_n128_team: Direct, Bf16, Gathered<2, B_COLUMNS, 2, 2>;
                conv_tf32_turned_n64_team: Direct, Tf32, Gathered<1, B_COLUMNS, 4, 2>;
                conv_tf32_turned_n128_team: Direct, Tf32, Gathered<2, B_COLUMNS, 4, 2>;
            }
            conv_grad "conv_grad" ConvWordsParams sm_90a Convolution {
                conv_grad_f16_64x64: Direct, F16, GatheredPairs<1, 1>;
                conv_grad_f16_64x128: Direct, F16, GatheredPairs<1, 2>;
                conv_grad_f16_128x64: Direct, F16, GatheredPairs<2, 1>;
                conv_grad_f16_128x128: Direct, F16, GatheredPairs<2, 2>;
                conv_grad_bf16_64x64: Direct, Bf16, GatheredPairs<1, 1>;
                conv_grad_bf16_64x128: Direct, Bf16, GatheredPairs<1, 2>;
                conv_grad_bf16_128x64: Direct, Bf16, GatheredPairs<2, 1>;
                conv_grad_bf16_128x128: Direct, Bf16, GatheredPairs<2, 2>;
            }
            conv_pairs "conv_pairs" ConvWordsParams sm_80 Convolution {
                conv_pairs_f32_64x64: Direct, F32, Paired<64, true>;
                conv_pairs_f32_128x128: Direct, F32, Paired<128, true>;
                conv_pairs_tf32_64x64: Direct, Tf32, Paired<64, true>;
                conv_pairs_tf32_128x128: Direct, Tf32, Paired<128, true>;
                conv_pairs_f32_any: Direct, F32, Paired<128, false>;
                conv_pairs_f16_any: Direct, F16, Paired<128, false>;
                conv_pairs_bf16_any: Direct, Bf16, Paired<128, false>;
            }
            conv_simt "conv_simt" ConvWordsParams sm_80 Convolution {
                conv_simt_f32_64x128: Direct, F32, GatheredWords<2, 2, true>;
                conv_simt_f32_128x64: Direct, F32, GatheredWords<4, 1, true>;
                conv_simt_f32_128x128: Direct, F32, GatheredWords<4, 2, true>;
                conv_simt_f32_any: Direct, F32, GatheredWords<4, 2, false>;
                conv_simt_f16_any: Direct, F16, GatheredWords<4, 2, false>;
                conv_simt_bf16_any: Direct, Bf16, GatheredWords<4, 2, false>;
            }
            conv_steps "conv_steps" ConvStepParams sm_80 Convolution {
                conv_turn_16: Direct, F16, ConvStep<CONV_TURN>;
                conv_turn_32: Direct, F32, ConvStep<CONV_TURN>;
                conv_sum_f32: Direct, F32, ConvStep<CONV_SUM>;
                conv_sum_f16: Direct, F16, ConvStep<CONV_SUM>;
                conv_sum_bf16: Direct, Bf16, ConvStep<CONV_SUM>;
                conv_insert: Direct, F32, ConvStep<CONV_INSERT>;
                conv_neighbours: Direct, F32, ConvStep<CONV_NEIGHBOURS>;
                conv_arrange: Direct, F32, ConvStep<CONV_ARRANGE>;
                conv_schedule: Direct, F32, ConvStep<CONV_SCHEDULE>;
                conv_stride: Direct, F32, ConvStep<CONV_STRIDE>;
                conv_first: Direct, F32, ConvStep<CONV_FIRST>;
                conv_take: Direct, F32, ConvStep<CONV_TAKE>;
                conv_transpose: Direct, F32, ConvStep<CONV_TRANSPOSE>;
                conv_keys: Direct, F32, ConvStep<CONV_KEYS>;
            }
            lists "lists" ListParams sm_80 Lists {
                lists_survey: Direct, F32, Lists<LIST_SURVEY>;
                lists_place: Direct, F32, Lists<LIST_PLACE>;
                lists_fill: Direct, F32, Lists<LIST_FILL>;
            }
            slicing "slicing" SlicingParams sm_80 Slicing {
                slicing_order: Direct, F32, Slicing<SLICING_ORDER>;
                slicing_count: Direct, F32, Slicing<SLICING_COUNT>;
                slicing_fill_16: Direct, F16, Slicing<SLICING_FILL>;
                slicing_fill_32: Direct, F32, Slicing<SLICING_FILL>;
                slicing_fill_64: Direct, F64, Slicing<SLICING_FILL>;
                slicing_values_16: Direct, F16, Slicing<SLICING_VALUES>;
                slicing_values_32: Direct, F32, Slicing<SLICING_VALUES>;
                slicing_values_64: Direct, F64, Slicing<SLICING_VALUES>;
            }
            narrow "narrow" WgmmaParams sm_90a Narrow {
                narrow_e4m3_64x128_n256: Block, E4m3, Panel<64, 128, 4, B_COLUMNS, 1>;
                narrow_e4m3_64x64_n256: Block, E4m3, Panel<64, 64, 4, B_COLUMNS, 1>;
                narrow_e4m3_32x32_n256: Block, E4m3, Panel<32, 32, 4, B_COLUMNS, 1>;
                narrow_e5m2_64x128_n256: Block, E5m2, Panel<64, 128, 4, B_COLUMNS, 1>;
                narrow_e5m2_64x64_n256: Block, E5m2, Panel<64, 64, 4, B_COLUMNS, 1>;
                narrow_e5m2_32x32_n256: Block, E5m2, Panel<32, 32, 4, B_COLUMNS, 1>;
                narrow_int8_64x128_n256: Block, Int8, Panel<64, 128, 4, B_COLUMNS, 1>;
                narrow_int8_64x64_n256: Block, Int8, Panel<64, 64, 4, B_COLUMNS, 1>;
                narrow_int8_32x32_n256: Block, Int8, Panel<32, 32, 4, B_COLUMNS, 1>;
            }
            attention "attention" AttentionParams sm_90a Attention {
                attention_f16_d64: Block, F16, Attention<1>;
                attention_f16_d128: Block, F16, Attention<2>;
                attention_bf16_d64: Block, Bf16, Attention<1>;
                attention_bf16_d128: Block, Bf16, Attention<2>;
            }
            nm_narrow "nm_narrow" NmParams sm_90a Narrow {
                nm_int8_128x256: Nm, Int8, TwoOfFour<1, 4, 1>;
                nm_int8_128x128: Nm, Int8, TwoOfFour<1, 2, 1>;
            }
            batched "batched" BatchedParams sm_80 Product {
                batched_csr_f32_n32: Csr, F32, SubWarp<8, 4, 1, 8, 1>;
                batched_csr_f32_n64: Csr, F32, SubWarp<16, 4, 1, 8, 1>;
                batched_csr_f32_n128: Csr, F32, SubWarp<32, 4, 1, 8, 1>;
                batched_csr_f32_any32: Csr, F32, SubWarp<32, 1, 1, 8, 1>;
                batched_csr_f64_n64: Csr, F64, SubWarp<32, 2, 1, 4, 1>;
                batched_csr_f64_any32: Csr, F64, SubWarp<32, 1, 1, 8, 1>;
                batched_csr_f16_n64: Csr, F16, SubWarp<8, 8, 1, 8, 1>;
                batched_csr_f16_n128: Csr, F16, SubWarp<16, 8, 1, 8, 1>;
                batched_csr_f16_any32: Csr, F16, SubWarp<32, 1, 1, 8, 1>;
                batched_csr_bf16_n64: Csr, Bf16, SubWarp<8, 8, 1, 8, 1>;
                batched_csr_bf16_n128: Csr, Bf16, SubWarp<16, 8, 1, 8, 1>;
                batched_csr_bf16_any32: Csr, Bf16, SubWarp<32, 1, 1, 8, 1>;
                batched_permuted_f32_n32: Permuted, F32, SubWarp<8, 4, 1, 8, 1>;
                batched_permuted_f32_n32_s4: Permuted, F32, SubWarp<8, 4, 1, 8, 4>;
                batched_permuted_f32_n64: Permuted, F32, SubWarp<16, 4, 1, 8, 1>;
                batched_permuted_f32_n128: Permuted, F32, SubWarp<32, 4, 1, 8, 1>;
                batched_permuted_f32_n256: Permuted, F32, SubWarp<32, 4, 2, 4, 1>;
                batched_permuted_f32_n128_l8_s4: Permuted, F32, SubWarp<8, 4, 4, 4, 4>;
                batched_permuted_f32_n128_l16: Permuted, F32, SubWarp<16, 4, 2, 4, 1>;
                batched_permuted_f32_any32: Permuted, F32, SubWarp<32, 1, 1, 8, 1>;
                batched_permuted_f64_n64: Permuted, F64, SubWarp<32, 2, 1, 4, 1>;
                batched_permuted_f64_any32: Permuted, F64, SubWarp<32, 1, 1, 8, 1>;
                batched_permuted_f16_n32: Permuted, F16, SubWarp<4, 8, 1, 8, 1>;
                batched_permuted_f16_n32_s4: Permuted, F16, SubWarp<4, 8, 1, 8, 4>;
                batched_permuted_f16_n64: Permuted, F16, SubWarp<8, 8, 1, 8, 1>;
                batched_permuted_f16_n128: Permuted, F16, SubWarp<16, 8, 1, 8, 1>;
                batched_permuted_f16_n256: Permuted, F16, SubWarp<32, 8, 1, 8, 1>;
                batched_permuted_f16_n128_l8: Permuted, F16, SubWarp<8, 8, 2, 4, 1>;
                batched_permuted_f16_n256_l16: Permuted, F16, SubWarp<16, 8, 2, 4, 1>;
                batched_permuted_f16_any32: Permuted, F16, SubWarp<32, 1, 1, 8, 1>;
                batched_permuted_bf16_n32: Permuted, Bf16, SubWarp<4, 8, 1, 8, 1>;
                batched_permuted_bf16_n32_s4: Permuted, Bf16, SubWarp<4, 8, 1, 8, 4>;
                batched_permuted_bf16_n64: Permuted, Bf16, SubWarp<8, 8, 1, 8, 1>;
                batched_permuted_bf16_n128: Permuted, Bf16, SubWarp<16, 8, 1, 8, 1>;
                batched_permuted_bf16_n256: Permuted, Bf16, SubWarp<32, 8, 1, 8, 1>;
                batched_permuted_bf16_n128_l8: Permuted, Bf16, SubWarp<8, 8, 2, 4, 1>;
                batched_permuted_bf16_n256_l16: Permuted, Bf16, SubWarp<16, 8, 2, 4, 1>;
                batched_permuted_bf16_any32: Permuted, Bf16, SubWarp<32, 1, 1, 8, 1>;
            }
            detect "detect" DetectParams sm_80 Detection {
                detect_16_128x1: Direct, F16, MicroTiles<128, 1, STEP_TILES>;
                detect_16_64x1: Direct, F16, MicroTiles<64, 1, STEP_TILES>;
                detect_16_32x1: Direct, F16, MicroTiles<32, 1, STEP_TILES>;
                detect_16_16x16: Direct, F16, MicroTiles<16, 16, STEP_TILES>;
                detect_16_1x32: Direct, F16, MicroTiles<1, 32, STEP_TILES>;
                detect_16_1x64: Direct, F16, MicroTiles<1, 64, STEP_TILES>;
                detect_32_128x1: Direct, F32, MicroTiles<128, 1, STEP_TILES>;
                detect_32_64x1: Direct, F32, MicroTiles<64, 1, STEP_TILES>;
                detect_32_32x1: Direct, F32, MicroTiles<32, 1, STEP_TILES>;
                detect_32_16x16: Direct, F32, MicroTiles<16, 16, STEP_TILES>;
                detect_32_1x32: Direct, F32, MicroTiles<1, 32, STEP_TILES>;
                detect_32_1x64: Direct, F32, MicroTiles<1, 64, STEP_TILES>;
                detect_8_128x1: Direct, Int8, MicroTiles<128, 1, STEP_TILES>;
                detect_8_64x1: Direct, Int8, MicroTiles<64, 1, STEP_TILES>;
                detect_8_32x1: Direct, Int8, MicroTiles<32, 1, STEP_TILES>;
                detect_8_16x16: Direct, Int8, MicroTiles<16, 16, STEP_TILES>;
                detect_8_1x32: Direct, Int8, MicroTiles<1, 32, STEP_TILES>;
                detect_8_1x64: Direct, Int8, MicroTiles<1, 64, STEP_TILES>;
                detect_1_128x1: Direct, Int8, MicroTiles<128, 1, STEP_BITS>;
                detect_1_64x1: Direct, Int8, MicroTiles<64, 1, STEP_BITS>;
                detect_1_32x1: Direct, Int8, MicroTiles<32, 1, STEP_BITS>;
                detect_1_16x16: Direct, Int8, MicroTiles<16, 16, STEP_BITS>;
                detect_1_1x32: Direct, Int8, MicroTiles<1, 32, STEP_BITS>;
                detect_1_1x64: Direct, Int8, MicroTiles<1, 64, STEP_BITS>;
                detect_pack_128x1: Direct, F16, MicroTiles<128, 1, STEP_PACK>;
                detect_pack_64x1: Direct, F16, MicroTiles<64, 1, STEP_PACK>;
                detect_pack_32x1: Direct, F16, MicroTiles<32, 1, STEP_PACK>;
                detect_lengths: Direct, F32, DetectLengths;
                detect_choices: Direct, F32, DetectChoices;
            }
            pit "pit" PitParams sm_90a Dynamic {
                pit_f16_128x1: Block, F16, PitColumns<128>;
                pit_f16_64x1: Block, F16, PitColumns<64>;
                pit_f16_32x1: Block, F16, PitColumns<32>;
                pit_bf16_128x1: Block, Bf16, PitColumns<128>;
                pit_bf16_64x1: Block, Bf16, PitColumns<64>;
                pit_bf16_32x1: Block, Bf16, PitColumns<32>;
            }
            join "join" JoinParams sm_80 Join {
                join_count: Direct, F32, JoinCount;
                join_starts: Direct, F32, JoinStarts;
                join_fill: Direct, F32, JoinFill;
            }
            message "message" MessageParams sm_80 Message {
                message_first_f32: Direct, F32, FirstLargest;
                message_first_f64: Direct, F64, FirstLargest;
                message_first_f16: Direct, F16, FirstLargest;
                message_first_bf16: Direct, Bf16, FirstLargest;
                message_pick_f32: Direct, F32, PickLargest;
                message_pick_f64: Direct, F64, PickLargest;
                message_pick_f16: Direct, F16, PickLargest;
                message_pick_bf16: Direct, Bf16, PickLargest;
                message_weights_f32: Direct, F32, LargestWeights;
                message_weights_f64: Direct, F64, LargestWeights;
                message_weights_f16: Direct, F16, LargestWeights;
                message_weights_bf16: Direct, Bf16, LargestWeights;
            }
            einsum "einsum" EinsumParams sm_80 Einsum {
                einsum_f32_x1_wide1: Listed, F32, Wide<1, 0, 4>;
                einsum_f32_x2_wide2: Listed, F32, Wide<2, 0, 4>;
                einsum_f32_x2_wide1: Listed, F32, Wide<2, 1, 4>;
                einsum_f32_x3_wide2: Listed, F32, Wide<3, 1, 4>;
                einsum_f32_x3_wide1: Listed, F32, Wide<3, 2, 4>;
                einsum_f32_x4_wide2: Listed, F32, Wide<4, 2, 4>;
                einsum_f32_x4_wide1: Listed, F32, Wide<4, 3, 4>;
                einsum_f32_x5_wide2: Listed, F32, Wide<5, 3, 4>;
                einsum_f32_x5_wide1: Listed, F32, Wide<5, 4, 4>;
                einsum_f32_x1: Listed, F32, Thin<1>;
                einsum_f32_x2: Listed, F32, Thin<2>;
                einsum_f32_x3: Listed, F32, Thin<3>;
                einsum_f32_x4: Listed, F32, Thin<4>;
                einsum_f32_x5: Listed, F32, Thin<5>;
                einsum_f32_x1_across: Listed, F32, Across<1>;
                einsum_f32_x2_across: Listed, F32, Across<2>;
                einsum_f32_x3_across: Listed, F32, Across<3>;
                einsum_f32_x4_across: Listed, F32, Across<4>;
                einsum_f32_x5_across: Listed, F32, Across<5>;
                einsum_f64_x1_wide1: Listed, F64, Wide<1, 0, 2>;
                einsum_f64_x2_wide2: Listed, F64, Wide<2, 0, 2>;
                einsum_f64_x2_wide1: Listed, F64, Wide<2, 1, 2>;
                einsum_f64_x3_wide2: Listed, F64, Wide<3, 1, 2>;
                einsum_f64_x3_wide1: Listed, F64, Wide<3, 2, 2>;
                einsum_f64_x4_wide2: Listed, F64, Wide<4, 2, 2>;
                einsum_f64_x4_wide1: Listed, F64, Wide<4, 3, 2>;
                einsum_f64_x5_wide2: Listed, F64, Wide<5, 3, 2>;
                einsum_f64_x5_wide1: Listed, F64, Wide<5, 4, 2>;
                einsum_f64_x1: Listed, F64, Thin<1>;
                einsum_f64_x2: Listed, F64, Thin<2>;
                einsum_f64_x3: Listed, F64, Thin<3>;
                einsum_f64_x4: Listed, F64, Thin<4>;
                einsum_f64_x5: Listed, F64, Thin<5>;
                einsum_f64_x1_across: Listed, F64, Across<1>;
                einsum_f64_x2_across: Listed, F64, Across<2>;
                einsum_f64_x3_across: Listed, F64, Across<3>;
                einsum_f64_x4_across: Listed, F64, Across<4>;
                einsum_f64_x5_across: Listed, F64, Across<5>;
                einsum_f16_x1_wide1: Listed, F16, Wide<1, 0, 8>;
                einsum_f16_x2_wide2: Listed, F16, Wide<2, 0, 8>;
                einsum_f16_x2_wide1: Listed, F16, Wide<2, 1, 8>;
                einsum_f16_x3_wide2: Listed, F16, Wide<3, 1, 8>;
                einsum_f16_x3_wide1: Listed, F16, Wide<3, 2, 8>;
                einsum_f16_x4_wide2: Listed, F16, Wide<4, 2, 8>;
                einsum_f16_x4_wide1: Listed, F16, Wide<4, 3, 8>;
                einsum_f16_x5_wide2: Listed, F16, Wide<5, 3, 8>;
                einsum_f16_x5_wide1: Listed, F16, Wide<5, 4, 8>;
                einsum_f16_x1: Listed, F16, Thin<1>;
                einsum_f16_x2: Listed, F16, Thin<2>;
                einsum_f16_x3: Listed, F16, Thin<3>;
                einsum_f16_x4: Listed, F16, Thin<4>;
                einsum_f16_x5: Listed, F16, Thin<5>;
                einsum_f16_x1_across: Listed, F16, Across<1>;
                einsum_f16_x2_across: Listed, F16, Across<2>;
                einsum_f16_x3_across: Listed, F16, Across<3>;
                einsum_f16_x4_across: Listed, F16, Across<4>;
                einsum_f16_x5_across: Listed, F16, Across<5>;
                einsum_bf16_x1_wide1: Listed, Bf16, Wide<1, 0, 8>;
                einsum_bf16_x2_wide2: Listed, Bf16, Wide<2, 0, 8>;
                einsum_bf16_x2_wide1: Listed, Bf16, Wide<2, 1, 8>;
                einsum_bf16_x3_wide2: Listed, Bf16, Wide<3, 1, 8>;
                einsum_bf16_x3_wide1: Listed, Bf16, Wide<3, 2, 8>;
                einsum_bf16_x4_wide2: Listed, Bf16, Wide<4, 2, 8>;
                einsum_bf16_x4_wide1: Listed, Bf16, Wide<4, 3, 8>;
                einsum_bf16_x5_wide2: Listed, Bf16, Wide<5, 3, 8>;
                einsum_bf16_x5_wide1: Listed, Bf16, Wide<5, 4, 8>;
                einsum_bf16_x1: Listed, Bf16, Thin<1>;
                einsum_bf16_x2: Listed, Bf16, Thin<2>;
                einsum_bf16_x3: Listed, Bf16, Thin<3>;
                einsum_bf16_x4: Listed, Bf16, Thin<4>;
                einsum_bf16_x5: Listed, Bf16, Thin<5>;
                einsum_bf16_x1_across: Listed, Bf16, Across<1>;
                einsum_bf16_x2_across: Listed, Bf16, Across<2>;
                einsum_bf16_x3_across: Listed, Bf16, Across<3>;
                einsum_bf16_x4_across: Listed, Bf16, Across<4>;
                einsum_bf16_x5_across: Listed, Bf16, Across<5>;
            }
            entries "entries" EntriesParams sm_80 Entries {
                entries_rows: Direct, F32, EntryRows;
                entries_offsets: Direct, F32, EntryOffsets;
                entries_check: Direct, F32, CheckEntries;
                entries_sort_count: Direct, F32, SortCount;
                entries_sort_place: Direct, F32, SortPlace;
                entries_sort_move: Direct, F32, SortMove;
                entries_group_starts: Direct, F32, GroupStarts;
                entries_fill_slots_16: Direct, F16, FillSlots;
                entries_fill_slots_32: Direct, F32, FillSlots;
                entries_fill_slots_64: Direct, F64, FillSlots;
                entries_permute_16: Direct, F16, PermuteValues;
                entries_permute_32: Direct, F32, PermuteValues;
                entries_permute_64: Direct, F64, PermuteValues;
                entries_reorder_places_t8: Direct, F32, ReorderPlaces<8192>;
                entries_reorder_places_t16: Direct, F32, ReorderPlaces<16384>;
                entries_split_16_t8: Direct, F16, Split<8192>;
                entries_split_16_t16: Direct, F16, Split<16384>;
                entries_split_32_t8: Direct, F32, Split<8192>;
                entries_split_32_t16: Direct, F32, Split<16384>;
                entries_split_64_t8: Direct, F64, Split<8192>;
                entries_join_16_t8: Direct, F16, Join<8192>;
                entries_join_16_t16: Direct, F16, Join<16384>;
                entries_join_32_t8: Direct, F32, Join<8192>;
                entries_join_32_t16: Direct, F32, Join<16384>;
                entries_join_64_t8: Direct, F64, Join<8192>;
                entries_top_f32: Direct, F32, TopEntries;
                entries_top_f64: Direct, F64, TopEntries;
                entries_top_f16: Direct, F16, TopEntries;
                entries_top_bf16: Direct, Bf16, TopEntries;
                entries_compact_f32: Direct, F32, Compact<true>;
                entries_compact_f64: Direct, F64, Compact<true>;
                entries_compact_f16: Direct, F16, Compact<true>;
                entries_compact_bf16: Direct, Bf16, Compact<true>;
                entries_compact_f32_any: Direct, F32, Compact<false>;
                entries_compact_f64_any: Direct, F64, Compact<false>;
                entries_compact_f16_any: Direct, F16, Compact<false>;
                entries_compact_bf16_any: Direct, Bf16, Compact<false>;
            }
        }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
mod row;
#[cfg(not(target_arch = "nvptx64"))]
pub use row::*;
