//! Kernel table of the family `gather_gemm`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_gather_gemm {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            gather_gemm {
                "conv" ConvParams Convolution {
                    conv_f16_n64 F16, conv_bf16_n64 Bf16: Direct, Gathered<1, GatheredOf<PLAIN>>;
                    conv_f16_n128 F16, conv_bf16_n128 Bf16: Direct, Gathered<2, GatheredOf<PLAIN>>;
                    conv_f16_turned_n64 F16, conv_bf16_turned_n64 Bf16: Direct, Gathered<1, GatheredOf<B_COLUMNS>>;
                    conv_f16_turned_n128 F16, conv_bf16_turned_n128 Bf16: Direct, Gathered<2, GatheredOf<B_COLUMNS>>;
                    conv_tf32_turned_n64 Tf32: Direct, Gathered<1, GatheredOf<B_COLUMNS, 4>>;
                    conv_tf32_turned_n128 Tf32: Direct, Gathered<2, GatheredOf<B_COLUMNS, 4>>;
                }
                "conv_mma" ConvWordsParams Convolution {
                    conv_mma_f16_n64 F16, conv_mma_bf16_n64 Bf16: Direct, Gathered<1, GatheredOf<PLAIN, 2, MmaSync>>;
                    conv_mma_f16_n128 F16, conv_mma_bf16_n128 Bf16: Direct, Gathered<2, GatheredOf<PLAIN, 2, MmaSync>>;
                    conv_mma_f16_t_n64 F16, conv_mma_bf16_t_n64 Bf16: Direct, Gathered<1, GatheredOf<B_COLUMNS, 2, MmaSync>>;
                    conv_mma_f16_t_n128 F16, conv_mma_bf16_t_n128 Bf16: Direct, Gathered<2, GatheredOf<B_COLUMNS, 2, MmaSync>>;
                    conv_mma_tf32_t_n64 Tf32: Direct, Gathered<1, GatheredOf<B_COLUMNS, 4, MmaSync>>;
                    conv_mma_tf32_t_n128 Tf32: Direct, Gathered<2, GatheredOf<B_COLUMNS, 4, MmaSync>>;
                }
                "conv_grad" ConvWordsParams Convolution {
                    conv_grad_f16_64x64 F16, conv_grad_bf16_64x64 Bf16: Direct, GatheredPairs<1, 1>;
                    conv_grad_f16_64x128 F16, conv_grad_bf16_64x128 Bf16: Direct, GatheredPairs<1, 2>;
                    conv_grad_f16_128x64 F16, conv_grad_bf16_128x64 Bf16: Direct, GatheredPairs<2, 1>;
                    conv_grad_f16_128x128 F16, conv_grad_bf16_128x128 Bf16: Direct, GatheredPairs<2, 2>;
                    conv_grad_mma_f16_64x64 F16, conv_grad_mma_bf16_64x64 Bf16: Direct, GatheredPairs<1, 1, MmaSync>;
                    conv_grad_mma_f16_128x128 F16, conv_grad_mma_bf16_128x128 Bf16: Direct, GatheredPairs<2, 2, MmaSync>;
                }
                "conv_simt" ConvWordsParams Convolution {
                    conv_simt_f32_64x128 F32: Direct, GatheredWords<2, 2, true>;
                    conv_simt_f32_128x64 F32: Direct, GatheredWords<4, 1, true>;
                    conv_simt_f32_any_64x128 F32, conv_simt_f16_any_64x128 F16, conv_simt_bf16_any_64x128 Bf16: Direct, GatheredWords<2, 2, false>;
                }
                "conv_pairs" ConvWordsParams Convolution {
                    conv_pairs_f32_64x64 F32, conv_pairs_tf32_64x64 Tf32: Direct, Paired<64, true>;
                    conv_pairs_f32_128x128 F32, conv_pairs_tf32_128x128 Tf32: Direct, Paired<128, true>;
                    conv_pairs_f32_any F32, conv_pairs_f16_any F16, conv_pairs_bf16_any Bf16: Direct, Paired<128, false>;
                }
                "conv_steps" ConvStepParams Convolution {
                    conv_turn_16 F16: Direct, ConvStep<CONV_TURN>;
                    conv_turn_32 F32: Direct, ConvStep<CONV_TURN>;
                    conv_sum_f32 F32, conv_sum_f16 F16, conv_sum_bf16 Bf16: Direct, ConvStep<CONV_SUM>;
                    conv_insert F32: Direct, ConvStep<CONV_INSERT>;
                    conv_neighbours F32: Direct, ConvStep<CONV_NEIGHBOURS>;
                    conv_arrange F32: Direct, ConvStep<CONV_ARRANGE>;
                    conv_schedule F32: Direct, ConvStep<CONV_SCHEDULE>;
                    conv_stride F32: Direct, ConvStep<CONV_STRIDE>;
                    conv_first F32: Direct, ConvStep<CONV_FIRST>;
                    conv_take F32: Direct, ConvStep<CONV_TAKE>;
                    conv_transpose F32: Direct, ConvStep<CONV_TRANSPOSE>;
                    conv_keys F32: Direct, ConvStep<CONV_KEYS>;
                }
                "pit" PitParams Dynamic {
                    pit_f16_128x1 F16, pit_bf16_128x1 Bf16: Block, PitColumns<PitOf<128, false>>;
                    pit_f16_64x1 F16, pit_bf16_64x1 Bf16: Block, PitColumns<PitOf<64, false>>;
                    pit_f16_32x1 F16, pit_bf16_32x1 Bf16: Block, PitColumns<PitOf<32, false>>;
                    pit_mma_f16_128x1 F16, pit_mma_bf16_128x1 Bf16: Block, PitColumns<PitOf<128, false, PLAIN, MmaQuarters, CpAsync>>;
                    pit_mma_f16_64x1 F16, pit_mma_bf16_64x1 Bf16: Block, PitColumns<PitOf<64, false, PLAIN, MmaQuarters, CpAsync>>;
                    pit_mma_f16_32x1 F16, pit_mma_bf16_32x1 Bf16: Block, PitColumns<PitOf<32, false, PLAIN, MmaQuarters, CpAsync>>;
                    pit_mma_f16_1x64 F16, pit_mma_bf16_1x64 Bf16: Block, PitColumns<PitOf<64, true, PLAIN, MmaQuarters, CpAsync>>;
                    pit_mma_right_f16_1x64 F16, pit_mma_right_bf16_1x64 Bf16: Block, PitColumns<PitOf<64, true, C_COLUMNS, MmaQuarters, CpAsync>>;
                }
                "pit" PitParams Dynamic {
                    pit_f16_1x64 F16, pit_bf16_1x64 Bf16: Block, PitColumns<PitOf<64, true>>;
                }
                "pit" PitParams Dynamic {
                    pit_right_f16_1x64 F16, pit_right_bf16_1x64 Bf16: Block, PitColumns<PitOf<64, true, C_COLUMNS>>;
                }
                "pit_tf32" PitParams Dynamic {
                    pit_tf32_128x1 Tf32: Block, PitWords<128>;
                    pit_tf32_64x1 Tf32: Block, PitWords<64>;
                    pit_tf32_32x1 Tf32: Block, PitWords<32>;
                    pit_mma_tf32_128x1 Tf32: Block, PitWords<128, MmaSync, CpAsync>;
                    pit_mma_tf32_64x1 Tf32: Block, PitWords<64, MmaSync, CpAsync>;
                    pit_mma_tf32_32x1 Tf32: Block, PitWords<32, MmaSync, CpAsync>;
                }
                "pit_conv" PitConvParams Dynamic {
                    pit_conv_f16_128x256 F16, pit_conv_bf16_128x256 Bf16: Block, PitConv<PitConvOf<128, 4, false>>;
                    pit_conv_f16_128x128 F16, pit_conv_bf16_128x128 Bf16: Block, PitConv<PitConvOf<128, 2, false>>;
                    pit_conv_f16_64x256 F16, pit_conv_bf16_64x256 Bf16: Block, PitConv<PitConvOf<64, 4, false>>;
                    pit_conv_f16_filters_128x256 F16, pit_conv_bf16_filters_128x256 Bf16: Block, PitConv<PitConvOf<128, 4, true>>;
                    pit_conv_f16_filters_128x128 F16, pit_conv_bf16_filters_128x128 Bf16: Block, PitConv<PitConvOf<128, 2, true>>;
                    pit_conv_f16_filters_64x256 F16, pit_conv_bf16_filters_64x256 Bf16: Block, PitConv<PitConvOf<64, 4, true>>;
                    pit_conv_mma_f16_128x128 F16, pit_conv_mma_bf16_128x128 Bf16: Block, PitConv<PitConvOf<128, 2, false, MmaQuarters, CpAsync>>;
                    pit_conv_mma_f16_64x256 F16, pit_conv_mma_bf16_64x256 Bf16: Block, PitConv<PitConvOf<64, 4, false, MmaQuarters, CpAsync>>;
                    pit_conv_mma_f16_filters_128x128 F16, pit_conv_mma_bf16_filters_128x128 Bf16: Block, PitConv<PitConvOf<128, 2, true, MmaQuarters, CpAsync>>;
                    pit_conv_mma_f16_filters_64x256 F16, pit_conv_mma_bf16_filters_64x256 Bf16: Block, PitConv<PitConvOf<64, 4, true, MmaQuarters, CpAsync>>;
                }
                "pit_few" PitFewParams Dynamic {
                    pit_few_f16_16_n256 F16, pit_few_bf16_16_n256 Bf16: Block, FewRows<16, 8>;
                    pit_few_f16_16_n384 F16, pit_few_bf16_16_n384 Bf16: Block, FewRows<16, 12>;
                    pit_few_f16_32_n256 F16, pit_few_bf16_32_n256 Bf16: Block, FewRows<32, 8>;
                    pit_few_f16_32_n384 F16, pit_few_bf16_32_n384 Bf16: Block, FewRows<32, 12>;
                    pit_few_f16_64_n256 F16, pit_few_bf16_64_n256 Bf16: Block, FewRows<64, 8>;
                    pit_few_mma_f16_16_n256 F16, pit_few_mma_bf16_16_n256 Bf16: Block, FewRows<16, 8, false>;
                    pit_few_mma_f16_32_n256 F16, pit_few_mma_bf16_32_n256 Bf16: Block, FewRows<32, 8, false>;
                    pit_few_mma_f16_64_n256 F16, pit_few_mma_bf16_64_n256 Bf16: Block, FewRows<64, 8, false>;
                }
                "grouped" GroupedParams Grouped {
                    grouped_f16_256 F16, grouped_bf16_256 Bf16: Block, GroupedTile<4, GroupedOf<PLAIN>>;
                    grouped_f16_128 F16, grouped_bf16_128 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN>>;
                    grouped_f16_256_t F16, grouped_bf16_256_t Bf16: Block, GroupedTile<4, GroupedOf<B_COLUMNS>>;
                    grouped_f16_64 F16, grouped_bf16_64 Bf16: Block, GroupedTile<1, GroupedOf<PLAIN>>;
                    grouped_f16_64_t F16, grouped_bf16_64_t Bf16: Block, GroupedTile<1, GroupedOf<B_COLUMNS>>;
                    grouped_f16_gated_128 F16, grouped_bf16_gated_128 Bf16: Block, GroupedTile<4, GroupedOf<PLAIN, true>>;
                    grouped_f16_gated_64 F16, grouped_bf16_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN, true>>;
                    grouped_f16_gated_128_t F16, grouped_bf16_gated_128_t Bf16: Block, GroupedTile<4, GroupedOf<B_COLUMNS, true>>;
                    grouped_f16_gated_64_t F16, grouped_bf16_gated_64_t Bf16: Block, GroupedTile<2, GroupedOf<B_COLUMNS, true>>;
                    grouped_f16_e4m3_128 F16, grouped_bf16_e4m3_128 Bf16: Block, GroupedTile<2, GroupedOf<SCALED_COLUMNS>>;
                    grouped_f16_e4m3_gated_64 F16, grouped_bf16_e4m3_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<SCALED_COLUMNS, true>>;
                    grouped_f16_quantized_128 F16, grouped_bf16_quantized_128 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS>>;
                    grouped_f16_quantized_256 F16, grouped_bf16_quantized_256 Bf16: Block, GroupedTile<4, GroupedOf<QUANTIZED_COLUMNS>>;
                    grouped_f16_quantized_gated_128 F16, grouped_bf16_quantized_gated_128 Bf16: Block, GroupedTile<4, GroupedOf<QUANTIZED_COLUMNS, true>>;
                    grouped_f16_quantized_gated_64 F16, grouped_bf16_quantized_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS, true>>;
                    grouped_mma_f16_128 F16, grouped_mma_bf16_128 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN, false, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_128 F16, grouped_mma_bf16_few_128 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN, false, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_64 F16, grouped_mma_bf16_few_64 Bf16: Block, GroupedTile<1, GroupedOf<PLAIN, false, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_gated_64 F16, grouped_mma_bf16_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN, true, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_gated_64 F16, grouped_mma_bf16_few_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<PLAIN, true, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_192_t F16, grouped_mma_bf16_192_t Bf16: Block, GroupedTile<3, GroupedOf<B_COLUMNS, false, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_128_t F16, grouped_mma_bf16_128_t Bf16: Block, GroupedTile<2, GroupedOf<B_COLUMNS, false, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_128_t F16, grouped_mma_bf16_few_128_t Bf16: Block, GroupedTile<2, GroupedOf<B_COLUMNS, false, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_64_t F16, grouped_mma_bf16_few_64_t Bf16: Block, GroupedTile<1, GroupedOf<B_COLUMNS, false, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_gated_64_t F16, grouped_mma_bf16_gated_64_t Bf16: Block, GroupedTile<2, GroupedOf<B_COLUMNS, true, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_few_gated_64_t F16, grouped_mma_bf16_few_gated_64_t Bf16: Block, GroupedTile<2, GroupedOf<B_COLUMNS, true, 64, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_e4m3_128 F16, grouped_mma_bf16_e4m3_128 Bf16: Block, GroupedTile<2, GroupedOf<SCALED_COLUMNS, false, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_e4m3_gated_64 F16, grouped_mma_bf16_e4m3_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<SCALED_COLUMNS, true, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_quantized_128 F16, grouped_mma_bf16_quantized_128 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS, false, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_quantized_128_fp8 F16, grouped_mma_bf16_quantized_128_fp8 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS, false, 128, MmaFp8, CpAsync>>;
                    grouped_mma_f16_quantized_gated_64 F16, grouped_mma_bf16_quantized_gated_64 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS, true, 128, MmaQuarters, CpAsync>>;
                    grouped_mma_f16_quantized_gated_64_fp8 F16, grouped_mma_bf16_quantized_gated_64_fp8 Bf16: Block, GroupedTile<2, GroupedOf<QUANTIZED_COLUMNS, true, 128, MmaFp8, CpAsync>>;
                }
                "grouped_grad" GroupedGradParams Own {
                    grouped_grad_f16 F16, grouped_grad_bf16 Bf16: Block, GroupedGrad<4>;
                    grouped_grad_mma_f16 F16, grouped_grad_mma_bf16 Bf16: Block, GroupedGrad<2, MmaQuarters>;
                }
            }
        }
    };
}
