output "queue_url" {
  description = "For `frazil content ingest --sqs`."
  value       = aws_sqs_queue.events.url
}

output "queue_arn" {
  description = "ARN of the queue."
  value       = aws_sqs_queue.events.arn
}

output "dead_letter_queue_url" {
  description = "What could not be taken."
  value       = aws_sqs_queue.dead.url
}

output "policy_arn" {
  description = "Attach it to the role or user that runs Frazil."
  value       = aws_iam_policy.frazil.arn
}
