#include "config/foreign_names.h"

#include "base/text.h"
#include "config/command_tokens.h"

namespace lockstep {
namespace {

constexpr std::string_view kSeveralMachines =
    "several machines: lockstep run --nnodes N --node-rank R --master-addr HOST -- PROGRAM, or another launcher";

constexpr std::string_view kOfModel = "the program builds its model; there is no such setting";
constexpr std::string_view kOfLoss = "the task of the program computes the loss; there is no such setting";
constexpr std::string_view kOfData = "the program builds its data set; there is no such setting";

// perceptrain, OneTrainer, PyTorch's tutorial, Lightning, SLEAP-NN, torchrun, accelerate, the Hugging Face Trainer,
// DeepSpeed. A name can also be that of a section or of a class, in lower case.
constexpr ForeignName kRows[] = {
    // earlier versions of lockstep
    {"memory.keep", "use --memory.keep_freed, its new name", "memory.keep_freed"},
    // devices and ranks
    {"gpus num_gpus n_gpus ngpus n_gpu gpu_count num_devices n_devices trainer_devices "
     "trainer_num_devices",
     "use --devices N; a list such as 0,2 names GPUs, -1 means all"},
    {"tpu use_tpu tpu_name use_xpu use_mps_device use_ipex ipex",
     "not available: lockstep trains on CPUs and on GPUs of NVIDIA"},
    {"device gpu gpu_id gpu_ids device_id device_ids device_indexes trainer_device_indices cuda_device",
     "use --devices with the numbers of GPUs: \"0,\" or \"0,2\" as a flag, [0] or [0, 2] in a file"},
    {"accelerator trainer_accelerator device_type train_device", "use --compute_setup auto, cpu or gpu"},
    {"use_gpu use_cuda cuda", "use --compute_setup gpu"},
    {"use_cpu no_cuda no_gpu cpu cpu_only", "use --compute_setup cpu"},
    {"world_size num_processes num_procs nproc n_procs np", "use --nprocs N: ranks in total over all nodes", "nprocs"},
    {"n", "use --nprocs N: ranks in total over all nodes"},  // of mpirun and srun; in a file it may be anything
    {"nproc_per_node nprocs_per_node gpus_per_node devices_per_node num_gpus_per_node",
     "use --nprocs N, which counts the ranks of all nodes, or: lockstep run --nproc-per-node N -- PROGRAM"},
    {"nnodes num_nodes num_machines", kSeveralMachines},
    {"node_rank machine_rank master_addr master_port main_process_ip main_process_port", kSeveralMachines},
    {"rdzv_endpoint rdzv_backend rdzv_id rdzv_conf local_addr", kSeveralMachines},
    {"port", "remove it: on one machine any free port is used; several machines take it from their launcher"},
    {"start_method role run_path no_python main_training_function",
     "remove it: the program starts itself once per rank, without Python"},
    {"monitor_interval", "remove it: a failed rank is noticed at once"},
    {"redirects tee local_ranks_filter logs_specs", "use --report.log_dir DIR, or the flags of lockstep run"},
    {"numa_binding enable_cpu_affinity", "use lockstep run --numa-binding node -- PROGRAM"},
    {"num_cpu_threads_per_process", "set OMP_NUM_THREADS"},
    {"same_network", "remove it: the launcher says which machines there are"},
    {"standalone spawn use_torchrun multi_gpu enable_multi_gpu", "remove it: the program starts its own ranks"},
    {"compute_environment distributed_type", "remove it: the launcher is detected; --nprocs N is the number of ranks"},
    {"device_placement", "remove it: the module and the batches are on the device of the rank"},
    {"local_rank", "remove it: the launcher sets LOCAL_RANK"},
    {"distributed_backend dist_backend ddp_backend process_group_backend", "use --backend auto, nccl, gloo or shm",
     "backend"},
    {"strategy trainer_strategy distributed_strategy", "remove it: gradients are always averaged over all ranks"},
    {"distributed_data_loading use_distributed_sampler replace_sampler_ddp data_strategy",
     "remove it: each rank always gets its own part of the data"},
    // length
    {"epochs num_epochs n_epochs total_epochs num_train_epochs epoch", "use --max_epochs N", "max_epochs"},
    {"max_iter max_iters", "use --max_epochs N, or --max_steps N for optimizer steps"},
    {"steps num_steps n_steps total_steps max_train_steps num_train_steps iters train_iters iterations",
     "use --max_steps N", "max_steps"},
    {"max_time time_limit timer", "use --max_time_s SECONDS, or a time such as 2h or 00:12:00:00"},
    {"limit_test_batches", "use --test.max_batches N: a number of steps, or a part such as 10%"},
    {"limit_predict_batches", "use --predict.max_batches N: a number of steps, or a part such as 10%"},
    {"limit_train_batches train_steps_per_epoch",
     "use --data.steps_per_epoch N: a number of steps, or a part such as 10%"},
    {"min_train_steps_per_epoch", "use --data.min_steps_per_epoch N", "data.min_steps_per_epoch"},
    // batches and data
    {"per_device_train_batch_size per_gpu_train_batch_size micro_batch_size train_micro_batch_size_per_gpu",
     "use --batch_size N: samples per rank and micro-batch", "batch_size"},
    {"device_batch_size bs", "use --batch_size N: samples per rank and micro-batch", "batch_size"},
    {"train_batch_size total_batch_size effective_batch_size",
     "use --global_batch_size N: samples per step over all ranks", "global_batch_size"},
    {"split_batches", "use --global_batch_size N: samples per step over all ranks"},
    {"even_batches", "remove it: ranks may have different numbers of samples, and no sample is repeated"},
    {"dispatch_batches", "remove it: each rank reads only its own samples"},
    {"val_batch_size eval_batch_size per_device_eval_batch_size",
     "use --batch_size N, which also applies to validation"},
    {"accumulate_grad_batches gradient_accumulation_steps gradient_accumulation grad_accum grad_accum_steps",
     "use --accumulation N, or --global_batch_size N, from which it is derived", "accumulation"},
    {"gradient_accumulation_plugin", "use --accumulation N, or --global_batch_size N, from which it is derived"},
    {"num_workers n_workers dataloader_num_workers dataloader_threads", "use --data.workers N", "data.workers"},
    {"prefetch_factor dataloader_prefetch_factor prefetch_next_batch", "use --data.prefetch N"},
    {"combinedloader multiple_trainloader_mode", "combine the loaders in the program: lockstep::CombinedLoader"},
    {"reload_dataloaders_every_n_epochs", "make the loaders in the program: lockstep::ReloadedLoader"},
    {"concepts concept_file_name aspect_ratio_bucketing resolution frames preprocessing augmentation_config "
     "train_labels_path val_labels_path test_file_path custom_conditioning_image data_config provider "
     "user_instances_only use_augmentations_train skeletons",
     kOfData},
    {"class_path init_args", "the program makes its objects itself; there is no such setting"},
    {"train_data_loader val_data_loader dataloader_config",
     "use --batch_size N, --data.workers N and --sampler.shuffle"},
    {"validation_fraction", "split the data in the program: lockstep::split_dataset"},
    {"use_same_data_for_val", "give the validation the same data in the program"},
    {"dataloader_pin_memory", "use --data.pin_memory", "data.pin_memory"},
    {"dataloader_drop_last", "use --sampler.drop_last", "sampler.drop_last"},
    {"non_blocking", "remove it: --data.pin_memory, which is the default, copies batches beside the computation"},
    {"use_stateful_dataloader", "remove it: checkpoints have the position in the data"},
    {"random_seed manual_seed seed_everything", "use --seed N", "seed"},
    {"data_seed use_seedable_sampler rng_types",
     "remove it: --seed N gives the order of the data and the random numbers of every rank"},
    // optimizer
    {"learning_rate base_lr initial_lr", "use --optim.lr X", "optim.lr"},
    {"lr_scheduler lr_scheduler_type scheduler learning_rate_scheduler custom_learning_rate_scheduler scheduler_params "
     "lr_schedule",
     "use --optim.schedule, for example warmup:500+cosine"},
    {"step_scheduler_with_optimizer", "remove it: a schedule of --optim.schedule counts the steps of the optimizer"},
    {"warmup warmup_steps num_warmup_steps lr_warmup_steps warmup_iters learning_rate_warmup_steps warmup_ratio",
     "use --optim.schedule warmup:500+cosine; a length is 500 steps, 2ep or 5%"},
    {"min_lr lr_min eta_min min_lr_ratio learning_rate_min_factor",
     "use --optim.schedule cosine:to=0.1: a fraction of the learning rate"},
    {"decay_steps lr_decay_steps lr_decay_iters t_max", "use --optim.schedule cosine:until=10000 or cosine:for=10000"},
    {"learning_rate_cycles num_cycles", "use --optim.schedule restarts:cycles=N"},
    {"gradient_clip_val gradient_clipping grad_clip clip_grad clip_grad_norm max_norm", "use --optim.max_grad_norm X",
     "optim.max_grad_norm"},
    {"optimizer optimizer_name optimizer_defaults weight_decay momentum betas",
     "the program creates its optimizer; --optim.lr changes the learning rate"},
    {"embedding_learning_rate", "give the parameters a group in the program: lockstep::GroupSpec"},
    {"early_stopping early_stopping_patience early_stop patience es_patience stop_training_on_plateau "
     "trainstop_criterion earlystopping",
     "use --early_stop.metric val_loss with --early_stop.patience N"},
    {"reduce_lr_on_plateau plateau_patience", "use --plateau.metric val_loss with --plateau.patience N"},
    {"loss_scaler loss_scaling", "use --optim.loss_scaling linear or sqrt with --optim.lr_batch_size N"},
    {"ema ema_decay ema_update_step_interval non_ema_sampling weightaveraging emaweightaveraging "
     "stochasticweightaveraging",
     "add the callback lockstep::WeightAverage to the trainer"},
    {"backbonefinetuning", "add the callback lockstep::FreezeUntil to the trainer"},
    {"gradientaccumulationscheduler",
     "give lockstep::ReloadedLoader plans with other batches in the program, or continue the run with another "
     "--global_batch_size N"},
    {"batchsizefinder auto_scale_batch_size scale_batch_size", "call lockstep::find_batch_size in the program"},
    {"learningratefinder auto_lr_find", "call lockstep::find_lr in the program"},
    {"spikedetection", "use --spike.z_score X with --spike.policy"},
    {"modelpruning", "not available; set the weights to zero in a callback of the program"},
    {"channels_last use_channels_last", "use --memory.channels_last"},
    {"lr_scaling scale_learning_rate learning_rate_scaler scale_lr",
     "use --optim.lr_scaling linear or sqrt with --optim.lr_batch_size N"},
    {"gradient_clip_value clip_value clip_grad_value", "use --optim.max_grad_value X", "optim.max_grad_value"},
    {"gradient_clip_algorithm", "use --optim.max_grad_norm X, or --optim.max_grad_value X"},
    {"cudnn_benchmark", "use --benchmark", "benchmark"},
    {"cuda_graph enable_cuda_graph use_cuda_graph", "use --cuda_graphs", "cuda_graphs"},
    {"allow_tf32 tf32 float32_matmul_precision set_float32_matmul_precision", "use --matmul_precision high"},
    {"use_deterministic_algorithms", "use --deterministic on"},
    {"anomaly_detection detect_anomalies", "use --detect_anomaly", "detect_anomaly"},
    {"mixed_precision dtype train_dtype amp use_amp bf16 fp16", "use --precision fp32, bf16_mixed or fp16_mixed"},
    {"fallback_train_dtype enable_autocast_cache",
     "remove it: with --precision bf16_mixed or fp16_mixed LibTorch chooses the dtype of each operation"},
    // model and loss
    {"training_method model_type model_config config_name backbone_config head_configs unet prior transformer "
     "unconditional_transformer text_encoder text_encoder_2 text_encoder_3 text_encoder_4 vae effnet_encoder decoder "
     "decoder_text_encoder decoder_vqgan text_encoder_layer_skip text_encoder_2_layer_skip text_encoder_3_layer_skip "
     "text_encoder_4_layer_skip text_encoder_sequence_length text_encoder_2_sequence_length force_circular_padding "
     "attention_mechanism dropout_probability embedding additional_embeddings preserve_embedding_norm "
     "embedding_weight_dtype bundle_additional_embeddings",
     kOfModel},
    {"peft_type lora_model_name lora_rank lora_alpha lora_decompose lora_decompose_norm_epsilon "
     "lora_decompose_output_axis lora_weight_dtype oft_block_size oft_block_share dora_oft oft_scaled oft_clipped_norm "
     "oft_cans lokr_dim lokr_decompose_both lokr_decompose_factor lokr_use_tucker lokr_weight_decompose "
     "lokr_dora_on_output lokr_full_matrix lokr_vec_trick",
     "add adapters to the model in the program: lockstep::add_lora; no other adapters"},
    {"layer_filter layer_filter_preset layer_filter_regex", "choose parameters in the program: lockstep::freeze"},
    {"quantization load_in_8bit load_in_4bit", "not available: there are no 8-bit and 4-bit weights"},
    {"gradient_checkpointing activation_checkpointing use_gradient_checkpointing",
     "call lockstep::recompute in the forward of the module"},
    {"async_offloading activation_offloading enable_activation_offloading enable_async_offloading offload_fraction "
     "layer_offload_fraction temp_device offload_optimizer_device offload_param_device",
     "not available: nothing is moved to the host during a step; lockstep::recompute saves memory too"},
    {"mse_strength mae_strength log_cosh_strength huber_strength huber_delta vb_loss_strength loss_weight_fn "
     "loss_weight_strength offset_noise_weight generalized_offset_noise perturbation_noise_weight "
     "rescale_noise_scheduler_to_zero_terminal_snr force_v_prediction force_epsilon_prediction min_noising_strength "
     "max_noising_strength timestep_distribution noising_weight noising_bias timestep_shift dynamic_timestep_shifting "
     "cep_gamma masked_training unmasked_probability unmasked_weight normalize_masked_area_loss "
     "masked_prior_preservation_weight online_hard_keypoint_mining",
     kOfLoss},
    // validation, checkpoints, reports
    {"val_every check_val_every_n_epoch eval_epochs eval_strategy", "use --validate.every_epochs N"},
    {"validation", "give the trainer a validation set in the program: Trainer::fit"},
    {"validate_after validate_after_unit",
     "use --validate.every_steps N, --validate.every_epochs N or --validate.every_s SECONDS"},
    {"num_sanity_val_steps", "use --validate.sanity_steps N", "validate.sanity_steps"},
    {"overfit_batches",
     "use --data.steps_per_epoch N with --sampler.shuffle false, and validate on the loader of the training"},
    {"val_check_interval eval_steps eval_interval eval_every validation_steps",
     "use --validate.every_steps N, or --validate.every_epochs 0.25 for a part of an epoch"},
    {"limit_val_batches eval_iters max_eval_steps",
     "use --validate.max_batches N: a number of steps, or a part such as 10%"},
    {"checkpoint_every save_every every_n_epochs save_strategy",
     "use --checkpoint.every_epochs N or --checkpoint.every_steps N"},
    {"save_steps save_interval checkpoint_interval checkpointing_steps every_n_train_steps",
     "use --checkpoint.every_steps N", "checkpoint.every_steps"},
    {"backup_after backup_after_unit save_after save_after_unit save_every_unit",
     "use --checkpoint.every_steps N, --checkpoint.every_epochs N or --checkpoint.every_s SECONDS"},
    {"train_time_interval", "use --checkpoint.every_s SECONDS"},
    {"save_total_limit total_limit save_last checkpoints_total_limit rolling_backup rolling_backup_count",
     "use --checkpoint.keep_last N"},
    {"backup_before_save", "remove it: the end of a run and a stop always save"},
    {"save_skip_first",
     "use --checkpoint.every_epochs 0 and ask for saves in a callback, from that step on: OnOptions::when, "
     "TrainControl::request_checkpoint"},
    {"save_on_exception onexceptioncheckpoint",
     "remove it: a failure that all ranks have between the same two steps is saved; after others the same command "
     "continues from the newest checkpoint"},
    {"save_filename_prefix filename auto_insert_metric_name", "use --checkpoint.name step{step}, which makes links"},
    {"save_weights_only", "use --checkpoint.weights_only", "checkpoint.weights_only"},
    {"output_dtype", "remove it: a checkpoint has the dtype of the parameters"},
    {"output_model_format output_model_destination log_model",
     "remove it: checkpoints in the run directory have the model; lockstep-convert makes a file for PyTorch"},
    {"description sleap_nn_version", "remove it: it only describes the file"},
    {"include_train_config hyperparams enable_autolog_hparams",
     "remove it: config.toml in the run directory has all settings"},
    {"prevent_overwrites overwrite_existing",
     "remove it: a run is continued; --fresh renames its directory and begins another one"},
    {"early_stop.monitor", "use --early_stop.metric METRIC"},
    {"plateau.monitor", "use --plateau.metric METRIC"},
    {"save_top_k", "use --checkpoint.keep_best N with --checkpoint.monitor METRIC"},
    {"checkpoint_best_only save_best_only metric_for_best_model validation_criterion",
     "use --checkpoint.monitor METRIC"},
    {"val_epsilon", "remove it: any improvement of the metric of --checkpoint.monitor counts"},
    {"model_ckpt modelcheckpoint",
     "use --checkpoint.monitor METRIC with --checkpoint.mode and --checkpoint.keep_best N"},
    {"greater_is_better", "use --checkpoint.mode max"},
    {"enable_checkpointing save_ckpt", "use --checkpoint.enabled or --no-checkpoint.enabled"},
    {"resume_from_checkpoint resume_from resume_ckpt_path ckpt_path checkpoint_path snapshot_path load_checkpoint "
     "continue_last_backup",
     "the same command resumes automatically; --resume DIR selects another checkpoint or run"},
    {"overwrite_output_dir from_scratch restart", "use --fresh"},
    {"pretrained pretrained_weights pretrained_model init_from load_weights finetune_from base_model_name "
     "pretrained_backbone_weights pretrained_head_weights model_name_or_path",
     "use --init_weights PATH", "init_weights"},
    {"output_dir out_dir save_dir log_folder root_folder default_root_dir workspace_dir ckpt_dir project_dir",
     "use --run_dir DIR", "run_dir"},
    {"project_config", "use --run_dir DIR, and --checkpoint.keep_last N for its total_limit"},
    {"logging_dir", "remove it: the run directory has the reports"},
    {"automatic_checkpoint_naming", "remove it: checkpoints are named by their step; for links use --checkpoint.name"},
    {"save_on_each_node", "use --checkpoint.per_node"},
    {"experiment_name exp_name", "use --run_name NAME", "run_name"},
    {"create_subfolder_per_run", "use --run_dir runs/{time} for another directory at each start"},
    {"config_path config_file cfg preset_path", "use --config FILE"},
    {"config_value", "write each setting as a flag of its own, such as --optim.lr 1e-4"},
    {"callback_path command_path",
     "the program adds its callbacks; lockstep ctl RUN asks a running training to save, validate, report or stop"},
    {"log_every_n_steps logging_steps log_interval log_every print_every print_freq write_every",
     "use --report.every_steps N", "report.every_steps"},
    {"tensorboard use_tensorboard log_with_tensorboard", "use --report.tensorboard", "report.tensorboard"},
    {"tensorboard_port tensorboard_expose tensorboard_always_on",
     "start TensorBoard yourself, on the run directory; --report.tensorboard writes its files"},
    {"enable_progress_bar progress_bar disable_tqdm", "use --report.progress or --no-report.progress"},
    {"verbose quiet", "use --report.log_level info, warning or error"},
    {"debug_mode", "use --dist.check_replicas, which compares the weights of the ranks at each report"},
    {"debug_dir", "log images in a callback, StageContext::log_image; --report.tensorboard writes them"},
    {"plot_every live_plot_every", "remove it: lockstep report RUN draws the metrics, of a running training too"},
    {"log_setup move_metrics_to_cpu", "remove it: metrics stay on the device until they are reported"},
    {"all_reduce_metrics sync_dist", "remove it: metrics are always those of all ranks"},
    {"enable_model_summary weights_summary modelsummary richmodelsummary",
     "print lockstep::model_summary(module) in the program"},
    {"logger loggers log_with report_to tracker tracking_tool",
     "use --report.tensorboard, --report.csv or --report.jsonl; for another program --report.command"},
    {"wandb use_wandb", "a program that sends the rows there is started with --report.command"},
    {"zmq", "for the rows use --report.command; to stop: lockstep ctl RUN stop"},
    {"samples sample_definition_file_name sample_after sample_after_unit sample_image_format sample_video_format "
     "sample_audio_format samples_to_tensorboard",
     "make samples in a callback, Trainer::on; on request by lockstep ctl RUN sample, Trainer::on_command"},
    {"sample_skip_first", "give the callback that makes samples a condition: OnOptions::when"},
    {"eval", "report metrics of the validation from the task of the program"},
    {"visualize_preds_during_training keep_viz viz_img_format plotting_functions",
     "log images in a callback, StageContext::log_image; --report.tensorboard writes them"},
    {"profiler", "add the callback lockstep::Profiler to the trainer"},
    {"callbacks lambdacallback", "add callbacks to the trainer in the program: Trainer::add, Trainer::on"},
    {"devicestatsmonitor", "add the callback lockstep::DeviceMonitor to the trainer"},
    {"learningratemonitor", "add the callback lockstep::LearningRateMonitor to the trainer"},
    {"throughputmonitor", "add the callback lockstep::ThroughputMonitor to the trainer"},
    {"track_grad_norm gradientmonitoring", "add the callback lockstep::GradientMonitor to the trainer"},
    {"basepredictionwriter", "give Trainer::predict a directory in the program"},
    {"inference_mode model_registry suggest_integrations",
     "remove it: the program decides this, there is no such setting"},
    {"plugins",
     "the program has what it needs of them: Trainer::use_strategy, Trainer::add_sink, lockstep::GradientHook"},
    // communication
    {"ddp_timeout dist_timeout", "use --dist.timeout_s SECONDS", "dist.timeout_s"},
    {"bucket_cap_mb ddp_bucket_cap_mb", "use --dist.bucket_mib X", "dist.bucket_mib"},
    {"ddp_find_unused_parameters", "use --dist.find_unused_parameters", "dist.find_unused_parameters"},
    {"ddp_broadcast_buffers", "use --dist.broadcast_buffers", "dist.broadcast_buffers"},
    {"sync_batchnorm sync_batch_norm sync_bn use_sync_bn",
     "declare lockstep::SyncBatchNorm in the module; --dist.require_sync_batch_norm refuses any other batch norm"},
    {"zero_stage zero_optimization zero_redundancy_optimizer shard_optimizer_state sharded_ddp",
     "use --dist.shard_optimizer, which is ZeRO stage 1"},
    {"use_deepspeed use_fsdp fsdp deepspeed fsdp_config deepspeed_config deepspeed_plugin deepspeed_plugins "
     "fsdp_plugin",
     "not available; --dist.shard_optimizer shards the optimizer state over the ranks"},
    {"use_megatron_lm tp_size pp_size tensor_parallel pipeline_parallel megatron_lm_plugin torch_tp_plugin "
     "parallelism_config use_parallelism_config",
     "not available: every rank has the whole model"},
    {"dynamo_backend dynamo_plugin dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic torch_compile compile",
     "not available in LibTorch"},
    {"kwargs_handlers",
     "use the settings themselves: --dist.find_unused_parameters, --dist.bucket_mib, --dist.timeout_s, --precision"},
    {"ddp_comm_hook gradient_reduce_precision",
     "use --dist.compression bf16, bf16_stochastic, fp32 or fp32_stochastic"},
    {"fused_gradient_reduce async_gradient_reduce async_gradient_reduce_buffer",
     "remove it: gradients are always sent in buckets during the backward; --dist.bucket_mib is their size"},
    {"cloud", "not available: a training runs where it is started; lockstep run starts several machines"},
    {"secrets secrets_path", "remove it: nothing is downloaded, so no tokens are needed"},
    {"downcast_bf16", "use --precision bf16"},
    {"bf16_stochastic_round bf16_stochastic_rounding", "use --optim.stochastic_rounding"},
    {"detect_nvlink", "remove it: NCCL finds NVLink itself"},
    {"cache_strategy data_pipeline_fw cache_img_path use_existing_imgs parallel_caching cache_workers "
     "cache_dir image_caching text_caching latent_caching clear_cache clear_cache_before_training only_cache "
     "caching_threads",
     "wrap the data set in the program: lockstep::memory_cache or lockstep::disk_cache"},
    {"delete_cache_imgs_after_training", "remove the directory of lockstep::disk_cache in the program, after the fit"},
    {"gradient_as_bucket_view", "remove it: gradients are always views of the buckets"},
};

bool contains(std::string_view names, std::string_view wanted) {
  for (auto at = names.find(wanted); at != std::string_view::npos; at = names.find(wanted, at + 1)) {
    const auto end = at + wanted.size();
    if ((at == 0 || names[at - 1] == ' ') && (end == names.size() || names[end] == ' ')) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const ForeignName> foreign_names() { return kRows; }

const ForeignName* find_foreign_name(std::string_view name) {
  const std::string whole = normal_name(to_lower(name));
  const std::string last = whole.substr(whole.rfind('.') + 1);  // npos + 1 is 0
  for (const std::string& wanted : {whole, last}) {
    for (const ForeignName& row : kRows) {
      if (!wanted.empty() && contains(row.names, wanted)) {
        return &row;
      }
    }
  }
  return nullptr;
}

}  // namespace lockstep
