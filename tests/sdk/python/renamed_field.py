"""Client that was generated after two fields of the proto file were renamed (tests/generator.rs): the message, its JSON and the
path of the request have the new names."""

from renamed.api.a2a_service import create_task_push_notification_config
from renamed.models import TaskPushNotificationConfig

config = TaskPushNotificationConfig(callback_uri='https://client.example/hook', token='secret')
assert config.to_dict() == {'callbackUri': 'https://client.example/hook', 'token': 'secret'}, config.to_dict()
request = create_task_push_notification_config._get_kwargs(job_id='t-1', body=config)
assert request['url'] == '/tasks/t-1/pushNotificationConfigs', request['url']
