//! `s3s`'s trait, operation by operation: each method only names the function in `ops/` that does the work.
//!
//! Operations that are not here are answered `501 NotImplemented` by `s3s`.

use std::sync::Arc;

use forebay_engine::Engine;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::access::AccessRules;
use crate::ops::{
    bucket, copy, delete, list, multipart, object_read, object_write, settings, tagging, uploads,
};

/// State that the operations share.
#[derive(Clone)]
pub(crate) struct Operations {
    pub(crate) engine: Arc<Engine>,
    pub(crate) rules: AccessRules,
    pub(crate) region: Arc<str>,
}

impl Operations {
    pub(crate) fn new(engine: Arc<Engine>, rules: AccessRules, region: String) -> Self {
        Self {
            engine,
            rules,
            region: region.into(),
        }
    }
}

/// One method per line: its name, its input, its output, the function that does it.
macro_rules! operations {
    ($($method:ident($input:ty) -> $output:ty = $function:path;)+) => {
        #[async_trait::async_trait]
        impl S3 for Operations {
            $(async fn $method(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                $function(self, request).await
            })+
        }
    };
}

operations! {
    list_buckets(ListBucketsInput) -> ListBucketsOutput = bucket::list;
    create_bucket(CreateBucketInput) -> CreateBucketOutput = bucket::create;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = bucket::head;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = bucket::delete;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = bucket::location;

    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list::versions;

    get_object(GetObjectInput) -> GetObjectOutput = object_read::get;
    head_object(HeadObjectInput) -> HeadObjectOutput = object_read::head;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = object_read::attributes;

    put_object(PutObjectInput) -> PutObjectOutput = object_write::put;
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::object;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many;

    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete;

    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create;
    upload_part(UploadPartInput) -> UploadPartOutput = multipart::upload_part;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = copy::part;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = multipart::complete;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort;
    list_parts(ListPartsInput) -> ListPartsOutput = uploads::list_parts;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = uploads::list;

    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = settings::versioning;
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = settings::bucket_acl;
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = settings::object_acl;
    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = settings::policy;
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = settings::policy_status;
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput)
        -> GetBucketLifecycleConfigurationOutput = settings::lifecycle;
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = settings::cors;
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = settings::tagging;
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput = settings::encryption;
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = settings::website;
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput = settings::replication;
    get_bucket_accelerate_configuration(GetBucketAccelerateConfigurationInput)
        -> GetBucketAccelerateConfigurationOutput = settings::accelerate;
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput)
        -> GetBucketNotificationConfigurationOutput = settings::notification;
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = settings::logging;
    get_bucket_request_payment(GetBucketRequestPaymentInput)
        -> GetBucketRequestPaymentOutput = settings::request_payment;
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput)
        -> GetBucketOwnershipControlsOutput = settings::ownership;
    get_object_lock_configuration(GetObjectLockConfigurationInput)
        -> GetObjectLockConfigurationOutput = settings::object_lock;
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = settings::public_access_block;
}
